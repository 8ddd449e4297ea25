// Space, participant and token: read once from the URL fragment, then from this tab's storage.

const KEY = "mew.session";
const NAMES = ["space", "participant", "token"];

/** Read #space=...&participant=...&token=... and remove it from the address bar. Returns the keys found. */
export function takeFragment() {
  const given = new URLSearchParams(location.hash.slice(1));
  const session = {};
  for (const name of NAMES) if (given.get(name)) session[name] = given.get(name);
  if (Object.keys(session).length) history.replaceState(null, "", location.pathname + location.search);
  return session;
}

/** The participant that the address names as shown, undefined for the whole space. */
export const shownInAddress = () => new URLSearchParams(location.hash.slice(1)).get("show") ?? undefined;

/** Put the shown participant into the address, as a step that Back undoes. */
export function putInAddress(id) {
  if (shownInAddress() === id) return;
  const hash = id === undefined ? "" : `#${new URLSearchParams({ show: id })}`;
  history.pushState(null, "", location.pathname + location.search + hash);
}

/** A value stored in this tab, or with "localStorage" in this browser; undefined without one. */
export function stored(key = KEY, storage = "sessionStorage") {
  try {
    return JSON.parse(window[storage].getItem(key)) ?? undefined;
  } catch {
    return undefined;
  }
}

/** Store a value, the session by default, in this tab or this browser; undefined removes everything there. */
export function store(value, key = KEY, storage = "sessionStorage") {
  try {
    if (value) window[storage].setItem(key, JSON.stringify(value));
    else window[storage].clear(); // including typed text
  } catch {
    // Storage may be disabled or full; the values then last until the page is left.
  }
}

export const isWhole = (session) => NAMES.every((name) => session[name]);

/** A URL of the gateway that served this page. Relative, because a proxy may serve it below another path. */
export function gatewayUrl(path, query = {}) {
  const url = new URL(path, new URL(".", location.href));
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  return url;
}
