// What a participant may probably send, from its capabilities. Pure. The gateway decides; this only hides what cannot
// work. It compares kinds and recipients and takes every payload as permitted.

/** Whether one of the patterns matches a kind; with `to`, also the recipient. */
export function maySend(patterns, kind, to) {
  return (patterns ?? []).some((pattern) => matchesAny(pattern?.kind, kind) && (!pattern.to || !to || matchesAny(pattern.to, to)));
}

const matchesAny = (patterns, value) => [patterns].flat().some((one) => typeof one === "string" && matches(one, value));

function matches(pattern, value) {
  if (pattern === "*") return true;
  if (pattern.startsWith("!")) return !matches(pattern.slice(1), value);
  if (pattern.length > 2 && pattern.startsWith("/") && pattern.endsWith("/")) return true; // a regular expression
  const escaped = pattern.replace(/[.+^${}()|[\]\\]/g, "\\$&").replace(/\/\*$/, "/**");
  const source = escaped.split("**").map((part) => part.replace(/\*/g, "[^/]*").replace(/\?/g, ".")).join(".*");
  return new RegExp(`^${source}$`, "s").test(value);
}
