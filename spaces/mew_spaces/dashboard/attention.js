// What the list of participants leaves out, and how it is sorted and grouped. Pure. How urgent each one is, its word and
// its place are in its view, which the gateway makes.

import WORDS from "./board_words.json" with { type: "json" };
import { plain } from "./text.js";

const URGENT = ["blocking", "warning", "notice"];

export const FILTERS = {
  all: ["All", () => true],
  attention: ["Needs attention", (line) => URGENT.includes(line.tone)],
  agents: ["Agents", (line) => line.role === "agent"],
  others: ["People and tools", (line) => line.role !== "agent"],
};

export const GROUPS = {
  none: ["no groups", undefined],
  state: ["by state", (line) => line.state],
  role: ["by role", (line) => ({ agent: "agents", person: "people", tool: "tools" })[line.role]],
  model: ["by model", (line) => line.model || "no model reported"],
};

/** The lines that a filter and a search text leave, in order. */
export function selectLines(lines, filter, search) {
  const wanted = search.trim().toLowerCase();
  const passes = (FILTERS[filter] ?? FILTERS.all)[1];
  const found = lines.filter((line) => passes(line) && (!wanted || `${line.id} ${line.word} ${line.model ?? ""}`.toLowerCase().includes(wanted)));
  return found.sort((a, b) => (a.order < b.order ? -1 : 1));
}

/** The lines in groups [name, lines]: the group of the most urgent line comes first. One without a name if there are none. */
export function groupLines(lines, by) {
  const nameOf = (GROUPS[by] ?? GROUPS.none)[1];
  if (!nameOf) return [["", lines]];
  const groups = new Map();
  for (const line of lines) groups.set(nameOf(line), [...(groups.get(nameOf(line)) ?? []), line]);
  return [...groups];
}

/** A queue item's title: what needs the person. */
export const titleOf = (item) => WORDS.attention[item.kind] ?? plain(item.kind);
