// What the list of participants leaves out. Pure. How urgent each one is, its word, its place, its filters and its groups are
// in the view, which the gateway makes. Sorting and grouping by them is done here: the gateway sends only the lines that
// changed, and a filter acts while the user types.

/** The lines that a filter and a search text leave, in order. */
export function selectLines(lines, filter, search) {
  const wanted = search.trim().toLowerCase();
  const found = lines.filter((line) => line.filters.includes(filter) && line.searched.includes(wanted));
  return found.sort((a, b) => (a.order < b.order ? -1 : 1));
}

/** The lines in groups [{name, about}, lines], by the titles of the board. One without a name if there are none. */
export function groupLines(lines, by, titleOf) {
  if (by === "none") return [[{ name: "" }, lines]];
  return [...Map.groupBy(lines, (line) => line.groups[by])].map(([name, own]) => [titleOf(by, name), own]);
}
