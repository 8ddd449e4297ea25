// The probable rights of a participant, from its capabilities. Pure. The gateway decides; this only hides actions that cannot work. It
// compares kinds and recipients and takes every payload as permitted.

/** Whether one of the patterns matches a kind; with `to`, also the recipient. */
export function maySend(patterns, kind, to) {
  return (patterns ?? []).some((pattern) => matchesAny(pattern?.kind, kind) && (!pattern.to || !to || matchesAny(pattern.to, to)));
}

const matchesAny = (patterns, value) => [patterns].flat().some((one) => typeof one === "string" && matches(one, value));

function matches(pattern, value) {
  const refused = /^!*/.exec(pattern)[0].length;
  const isMatch = matchesPlain(pattern.slice(refused), value);
  return refused % 2 ? !isMatch : isMatch;
}

function matchesPlain(pattern, value) {
  if (pattern === "*") return true;
  if (pattern.length > 2 && pattern.startsWith("/") && pattern.endsWith("/")) return true; // a regular expression
  const parts = pattern.replace(/\/\*$/, "/**").match(/\*\*|[^]/g) ?? [];
  // Peers write patterns, and a regular expression made from one could take exponential time, so all positions are followed at once.
  const skipStars = (places) => {
    for (let at = 0; at < parts.length; at += 1) if (places[at] && (parts[at] === "*" || parts[at] === "**")) places[at + 1] = 1;
    return places;
  };
  let places = new Uint8Array(parts.length + 1);
  places[0] = 1;
  places = skipStars(places);
  for (const character of value.split("")) {
    const next = new Uint8Array(parts.length + 1);
    for (const [at, part] of parts.entries()) {
      if (!places[at]) continue;
      if (part === "**" || (part === "*" && character !== "/")) next[at] = 1;
      else if (part === "?" || part === character) next[at + 1] = 1;
    }
    places = skipStars(next);
  }
  return places[parts.length] === 1;
}
