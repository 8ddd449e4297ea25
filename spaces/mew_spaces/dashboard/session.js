// Who looks at which space: from the address's fragment once, then from this tab's storage.

const KEY = "mew.session";
const NAMES = ["space", "participant", "token"];

/** Take #space=...&participant=...&token=... out of the address bar. Returns the keys that were there. */
export function takeFragment() {
  const given = new URLSearchParams(location.hash.slice(1));
  const session = {};
  for (const name of NAMES) if (given.get(name)) session[name] = given.get(name);
  if (location.hash) history.replaceState(null, "", location.pathname + location.search);
  return session;
}

/** What this tab keeps; empty when it keeps nothing. */
export function stored() {
  try {
    return JSON.parse(sessionStorage.getItem(KEY)) ?? {};
  } catch {
    return {};
  }
}

/** Keep a session for this tab; undefined forgets it. */
export function store(session) {
  try {
    if (session) sessionStorage.setItem(KEY, JSON.stringify(session));
    else sessionStorage.removeItem(KEY);
  } catch {
    // Storage may be switched off; the page then works until it is reloaded.
  }
}

export const isWhole = (session) => NAMES.every((name) => session[name]);

/** The address of a path of the gateway that served this page, also when a proxy put it under another path. */
export function gatewayUrl(path, query = {}) {
  const url = new URL(path, new URL(".", location.href));
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  return url;
}
