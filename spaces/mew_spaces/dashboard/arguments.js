// Arguments and results of tools as readable nodes: a change as the diff that the gateway made, a text as text, the rest as indented JSON.
// Longer texts are cut with a mark that gives the size of the rest; nothing else is omitted or invisible.

import { make } from "./dom.js";
import { counted, grouped } from "./text.js";
import { visible } from "./visible.js";

const MOST_SHOWN = 100_000; // characters of one call; the gateway's limit is lower

/** How much of a call may still be shown, and how many characters were left out. `isWhole` shows all that a page can. */
export class Room {
  constructor({ chars = 8_000, lines = 400, isWhole = false } = {}) {
    Object.assign(this, { isWhole, chars: isWhole ? MOST_SHOWN : chars, lines: isWhole ? Infinity : lines, missing: 0 });
  }

  get isFull() {
    return this.chars <= 0 || this.lines <= 0;
  }

  /** The beginning of a text that fits. */
  take(text) {
    let end = Math.min(text.length, Math.max(0, this.chars));
    let at = -1;
    let count = 0;
    for (; count < this.lines; count += 1) {
      at = text.indexOf("\n", at + 1);
      if (at < 0 || at >= end) break;
    }
    if (count >= this.lines) end = Math.min(end, Math.max(0, at));
    if (end < text.length && /[\ud800-\udbff]/.test(text[end - 1] ?? "")) end -= 1; // not within a character
    this.chars -= end + 1;
    this.lines -= count + 1;
    this.missing += text.length - end;
    return text.slice(0, end);
  }
}

/** A node of a text as far as there is room, with the mark of what is missing. */
function fitted(text, room) {
  if (!text) return make("span", "odd odd-blank", "empty");
  const shown = room.take(text);
  const node = visible(shown, room);
  if (shown.length < text.length) node.append(cut(text.slice(shown.length), room));
  return node;
}

/** The mark of a cut, which opens everything, unless that is more than a page shows. */
function cut(rest, room) {
  let lines = 0;
  for (let at = rest.indexOf("\n"); at >= 0; at = rest.indexOf("\n", at + 1)) lines += 1;
  const words = `… ${counted(rest.length, "more character")}${lines ? ` in ${grouped(lines + 1)} lines` : ""}`;
  if (room.isWhole) return make("span", "cut-mark", `${words}: too long for this page`);
  const node = make("button", "cut-mark", `${words}: show all`);
  node.dataset.whole = "true";
  return node;
}

const isUnifiedDiff = (text) => /^@@ .*@@/m.test(text) && /^[-+]/m.test(text);

function renderDiff(rows, room, title) {
  const box = make("pre", "diff");
  if (title) box.append(make("span", "diff-title", title));
  let node;
  for (const [index, [sign, line]] of rows.entries()) {
    const shown = room.take(line);
    if (node?.dataset.mark !== sign || sign === "@") {
      node = make("span", "diff-line");
      node.dataset.mark = sign;
      box.append(node);
    }
    node.append(sign === "@" ? "" : `${sign} `, visible(shown, room));
    const isCut = shown.length < line.length || (room.isFull && index < rows.length - 1);
    if (!isCut) {
      node.append("\n");
      continue;
    }
    const later = rows.slice(index + 1).map((one) => one[1]);
    const rest = [line.slice(shown.length), ...later].join("\n");
    room.missing += rest.length - (line.length - shown.length);
    box.append(cut(rest, room));
    break;
  }
  return box;
}

/** A change that the gateway found: its lines in hunks, below what it adds up to. */
function renderChange({ keys: [before, after], rows, added, removed }, room) {
  if (!rows.length) return make("p", "soft", `${before} and ${after} are the same text`);
  return renderDiff(rows, room, `+${grouped(added)} −${grouped(removed)}`);
}

const unified = (text) => text.split("\n").map((line) => (/^[-+]/.test(line) && !/^(---|\+\+\+)/.test(line) ? [line[0], line.slice(1)] : [" ", line]));

/** The nodes of a tool's arguments. `changes` are those that the gateway found in them, by their place. */
export function renderArguments(args, room = new Room(), changes = {}) {
  if (args === undefined || args === null) return [];
  if (typeof args !== "object" || Array.isArray(args)) return [renderValue(args, room)];
  return renderRecord(args, room, changes, "");
}

function renderRecord(record, room, changes = {}, place = undefined) {
  const change = changes[place];
  const rest = Object.entries(record).filter(([key]) => !change?.keys.includes(key));
  const list = make("dl", "arguments");
  const nodes = rest.length ? [list] : [];
  for (const [index, [key, value]] of rest.entries()) {
    if (room.isFull) {
      nodes.push(missing(Object.fromEntries(rest.slice(index)), room));
      break;
    }
    list.append(make("dt", "", fitted(key, room)), make("dd", "", ...renderMember(value, room, changes, key)));
  }
  if (change) nodes.push(renderChange(change, room));
  return nodes;
}

/** The mark of members for which there is no room at all. */
function missing(members, room) {
  const text = JSON.stringify(members, null, 2);
  room.missing += text.length;
  return make("p", "", cut(text, room));
}

function renderMember(value, room, changes, key) {
  if (!Array.isArray(value) || !value.some((_, index) => changes[`${key}/${index}`])) return [renderValue(value, room)];
  const nodes = [];
  for (const [index, one] of value.entries()) {
    if (room.isFull) return [...nodes, missing(value.slice(index), room)];
    nodes.push(...(changes[`${key}/${index}`] ? renderRecord(one, room, changes, `${key}/${index}`) : [renderValue(one, room)]));
  }
  return nodes;
}

function renderValue(value, room) {
  if (typeof value === "string" && isUnifiedDiff(value)) return renderDiff(unified(value), room);
  const text = typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? String(value));
  return make(text.includes("\n") ? "pre" : "code", "", fitted(text, room));
}

/** The nodes of a tool's result or error. */
export function renderResult(result, room = new Room()) {
  if (result === undefined || result === null) return [];
  if (typeof result.message === "string" && "code" in result) return [make("p", "problem", fitted(result.message, room))];
  if (!Array.isArray(result.content)) return [renderValue(result, room)];
  return result.content.map((part) => (typeof part?.text === "string" ? make("pre", "", fitted(part.text, room)) : make("p", "", `[${part?.type ?? "content"}]`)));
}

/**
 * The nodes of a proposed call {to, payload}: what would run, on whom, and all that it gets. `lead` are the words before
 * it. A tool call has its arguments; another method its parameters.
 */
export function renderCall(lead, { to, payload }, room, changes) {
  const { method, params } = payload ?? {};
  const isTool = method === "tools/call" && typeof params?.name === "string";
  const { name, arguments: args, ...others } = isTool ? params : { name: String(method), arguments: params };
  const call = make("p", "call", `${lead} `, make("code", "", fitted(name, room)), isTool ? "" : " (a method, not a tool)");
  for (const [index, peer] of [to ?? []].flat().entries()) call.append(index ? ", " : " on ", make("code", "", fitted(String(peer), room)));
  const nodes = [call, ...renderArguments(args, room, changes)];
  if (Object.keys(others).length) nodes.push(make("p", "soft", "With it goes:"), ...renderRecord(others, room));
  return nodes;
}

/**
 * A proposed call of which nothing may be hidden when it is approved: {nodes, isShown, note}. `opened` is a set of the
 * calls that the user opened; `key` is this one in it. `changes` as for `renderArguments`.
 */
export function renderProposal(lead, call, opened, limits, changes) {
  const key = JSON.stringify([call.to, call.payload?.method, call.payload?.params]);
  const room = new Room({ ...limits, isWhole: opened.has(key) });
  const nodes = renderCall(lead, call, room, changes);
  const note = room.isWhole ? "Too long to approve on this page; decide in a terminal." : "Open the whole call before you approve it.";
  return { nodes, key, isShown: !room.missing, note: room.missing ? note : "" };
}
