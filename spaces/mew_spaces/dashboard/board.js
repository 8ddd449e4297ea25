// The board: the views of participants as the gateway sends them. No DOM here. Views are shown unchanged; only ages are counted here, from
// the times in the texts.

import { span } from "./text.js";

const AGE = /\x1f([^\x1f]*)\x1f/g;

/** Parse a protocol time into milliseconds, NaN if it is invalid. Without a zone it is UTC. */
export const parseTime = (text) => Date.parse(/T[\d:.]+$/.test(text) ? `${text}Z` : text);

export class Board {
  constructor() {
    this.space = undefined;
    this.name = undefined;
    this.lines = new Map();
    this.totals = {};
    this._groups = new Map(); // their titles
    this._skewMs = 0;
  }

  /** Apply a `view` event. Returns [line, the line before] of each participant that changed. */
  apply(view, nowMs) {
    const at = parseTime(view.at);
    this._skewMs = Number.isNaN(at) ? 0 : at - nowMs;
    this.space = view.space;
    this.name = view.name ?? undefined;
    this.totals = view.totals ?? {};
    const before = this.lines;
    if (view.is_whole) [this.lines, this._groups] = [new Map(), new Map()];
    for (const one of view.groups ?? []) {
      if (one.about) this._groups.set(`${one.by} ${one.name}`, one);
      else this._groups.delete(`${one.by} ${one.name}`);
    }
    const changed = (view.participants ?? []).map((line) => [line, before.get(line.id)]);
    for (const [line] of changed) this.lines.set(line.id, line);
    for (const id of view.removed ?? []) this.lines.delete(id);
    return changed;
  }

  /** The lines that a filter and a search text leave, in order: the gateway sends only those that changed. */
  select(filter, search) {
    const wanted = search.trim().toLowerCase();
    const found = [...this.lines.values()].filter((line) => line.filters.includes(filter) && line.searched.includes(wanted));
    return found.sort((a, b) => (a.order < b.order ? -1 : 1));
  }

  /** Lines in groups [{name, about}, lines]; one group without a name if `by` is "none". */
  grouped(lines, by) {
    if (by === "none") return [[{ name: "" }, lines]];
    const titleOf = (name) => this._groups.get(`${by} ${name}`) ?? { name, about: "" };
    return [...Map.groupBy(lines, (line) => line.groups[by])].map(([name, own]) => [titleOf(name), own]);
  }

  /** The age of a protocol time in milliseconds, by the gateway's clock; undefined if it is invalid. */
  elapsedMs(wireTime, nowMs) {
    const at = parseTime(wireTime);
    return Number.isNaN(at) ? undefined : Math.max(0, nowMs + this._skewMs - at);
  }

  /** A local time by the gateway's clock. */
  nowMs(localMs) {
    return localMs + this._skewMs;
  }
}

/** A text of a view with ages in place of times. `age` gives the age of a protocol time in milliseconds. */
export function aged(text, age) {
  return text.includes("\x1f") ? text.replace(AGE, (_, at) => (age(at) === undefined ? "some time" : span(age(at)))) : text;
}
