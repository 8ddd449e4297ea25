// Arguments and results of tools as readable nodes: a change as a diff, a text as text, the rest as indented JSON.

import { make } from "./dom.js";
import { grouped } from "./text.js";

const MAX_CHARS = 8_000;
const MAX_LINES = 400;
const PAIRS = [["old_string", "new_string"], ["oldText", "newText"], ["old_text", "new_text"], ["old_str", "new_str"], ["before", "after"], ["old", "new"]];

/** A change in a record, as [old, new], or undefined. Pure. */
function changeIn(record) {
  const pair = PAIRS.find(([before, after]) => typeof record?.[before] === "string" && typeof record?.[after] === "string");
  return pair && { pair, before: record[pair[0]], after: record[pair[1]] };
}

const isUnifiedDiff = (text) => /^@@ .*@@/m.test(text) && /^[-+]/m.test(text);

/** The lines of a change as [mark, line], with "-", "+" or " ". What both texts begin and end with is common. Pure. */
export function diffLines(before, after) {
  const [a, b] = [before.split("\n"), after.split("\n")];
  let start = 0;
  while (start < Math.min(a.length, b.length) && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < Math.min(a.length, b.length) - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const common = (lines) => lines.map((line) => [" ", line]);
  return [
    ...common(a.slice(0, start)),
    ...a.slice(start, a.length - end).map((line) => ["-", line]),
    ...b.slice(start, b.length - end).map((line) => ["+", line]),
    ...common(a.slice(a.length - end)),
  ];
}

function renderDiff(lines) {
  const shown = lines.slice(0, MAX_LINES).map(([mark, line]) => {
    const node = make("span", "diff-line", `${mark} ${line.slice(0, 500)}\n`);
    node.dataset.mark = mark;
    return node;
  });
  const more = lines.length - MAX_LINES;
  return make("pre", "diff", ...shown, ...(more > 0 ? [`… ${grouped(more)} more lines`] : []));
}

const unified = (text) => renderDiff(text.split("\n").map((line) => (/^[-+]/.test(line) && !/^(---|\+\+\+)/.test(line) ? [line[0], line.slice(1)] : [" ", line])));

/** The nodes of a tool's arguments. */
export function renderArguments(args) {
  if (args === undefined || args === null) return [];
  if (typeof args !== "object" || Array.isArray(args)) return [renderValue(args)];
  const change = changeIn(args);
  const rest = Object.entries(args).filter(([key]) => !change?.pair.includes(key));
  const list = make("dl", "arguments", ...rest.flatMap(([key, value]) => [make("dt", "", key), make("dd", "", ...renderMember(value))]));
  return [...(rest.length ? [list] : []), ...(change ? [renderDiff(diffLines(change.before, change.after))] : [])];
}

function renderMember(value) {
  if (Array.isArray(value) && value.length && value.every(changeIn)) {
    return value.map(changeIn).map(({ before, after }) => renderDiff(diffLines(before, after)));
  }
  return [renderValue(value)];
}

function renderValue(value) {
  if (typeof value === "string") {
    if (isUnifiedDiff(value)) return unified(value);
    return value.includes("\n") ? make("pre", "", shorten(value)) : make("code", "", shorten(value));
  }
  const json = JSON.stringify(value, null, 2) ?? String(value);
  return json.includes("\n") ? make("pre", "", shorten(json)) : make("code", "", shorten(json));
}

/** The nodes of a tool's result or error. */
export function renderResult(result) {
  if (result === undefined || result === null) return [];
  if (typeof result.message === "string" && "code" in result) return [make("p", "problem", result.message)];
  if (Array.isArray(result.content)) {
    return result.content.map((part) => (typeof part?.text === "string" ? make("pre", "", shorten(part.text)) : make("p", "", `[${part?.type ?? "content"}]`)));
  }
  return [renderValue(result)];
}

/** The beginning of a long text, and how much was left out. Pure. */
export function shorten(text, most = MAX_CHARS) {
  const more = text.length - most;
  return more <= 0 ? text : `${text.slice(0, most)} … (${grouped(more)} more characters)`;
}

/** Arguments in one short line. Pure. */
export function inBrief(args, most = 90) {
  if (args === undefined || args === null || typeof args !== "object") return args === undefined || args === null ? "" : String(args).slice(0, most);
  const words = Object.entries(args).map(([key, value]) => `${key}: ${typeof value === "string" ? value.replace(/\s+/g, " ") : JSON.stringify(value)}`);
  const line = words.join(", ");
  return line.length > most ? `${line.slice(0, most)}…` : line;
}
