// What the list of participants leaves out. Pure. How urgent each one is, its word, its place, its groups and their titles
// are in the view, which the gateway makes. Sorting and grouping by them is done here: the gateway sends only the lines that
// changed, and a filter acts while the user types.

import WORDS from "./words.json" with { type: "json" };
import { grouped, plain } from "./text.js";

const URGENT = ["blocking", "warning", "notice"];

export const FILTERS = {
  all: ["All", () => true],
  attention: ["Needs attention", (line) => URGENT.includes(line.tone)],
  agents: ["Agents", (line) => line.role === "agent"],
  others: ["People and tools", (line) => line.role !== "agent"],
};

export const GROUPS = { none: "no groups", state: "by state", role: "by role", model: "by model" };

/** The lines that a filter and a search text leave, in order. */
export function selectLines(lines, filter, search) {
  const wanted = search.trim().toLowerCase();
  const passes = (FILTERS[filter] ?? FILTERS.all)[1];
  const found = lines.filter((line) => passes(line) && line.searched.includes(wanted));
  return found.sort((a, b) => (a.order < b.order ? -1 : 1));
}

/**
 * The lines in groups [{name, about}, lines], by the titles of the view. One without a name if there are none. The view has
 * titles for a bounded number of groups: the others have the number of their participants, of `all` lines.
 */
export function groupLines(lines, by, titles, all = lines) {
  if (by === "none" || !Object.hasOwn(GROUPS, by)) return [[{ name: "" }, lines]];
  const groups = Map.groupBy(lines, (line) => line.groups[by]);
  const known = new Map(titles.filter((one) => one.by === by).map((one) => [one.name, one]));
  const whole = Map.groupBy(all, (line) => line.groups[by]);
  return [...groups].map(([name, own]) => [known.get(name) ?? { name, about: grouped(whole.get(name).length) }, own]);
}

/** A queue item's title: what needs the person. */
export const titleOf = (item) => WORDS.attention[item.kind] ?? plain(item.kind);
