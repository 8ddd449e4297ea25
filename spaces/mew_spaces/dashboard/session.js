// Space, participant and token: read once from the URL fragment, then from this tab's storage.

const KEY = "mew.session";
const NAMES = ["space", "participant", "token"];

/** Read #space=...&participant=...&token=... and remove it from the address bar. Returns the keys found. */
export function takeFragment() {
  const given = new URLSearchParams(location.hash.slice(1));
  const session = {};
  for (const name of NAMES) if (given.get(name)) session[name] = given.get(name);
  if (location.hash) history.replaceState(null, "", location.pathname + location.search);
  return session;
}

/** The session stored in this tab; empty without one. */
export function stored() {
  try {
    return JSON.parse(sessionStorage.getItem(KEY)) ?? {};
  } catch {
    return {};
  }
}

/** Store a session in this tab; undefined removes it. */
export function store(session) {
  try {
    if (session) sessionStorage.setItem(KEY, JSON.stringify(session));
    else sessionStorage.clear(); // with what was typed
  } catch {
    // Storage may be disabled; the page then works until it is reloaded.
  }
}

export const isWhole = (session) => NAMES.every((name) => session[name]);

/** A URL of the gateway that served this page. Relative, because a proxy may serve it below another path. */
export function gatewayUrl(path, query = {}) {
  const url = new URL(path, new URL(".", location.href));
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  return url;
}
