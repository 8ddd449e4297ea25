// Markdown as a tree, and the tree as DOM nodes. Text never becomes markup: the tree has no raw HTML, and nodes are
// built one by one. Owns the syntax that agents use: headings, lists, quotes, tables, code, emphasis and links.
// Pictures become links, so that a message cannot make the browser request anything.

import { make } from "./dom.js";

const MAX_DEPTH = 6; // deeper quotes, lists and emphasis stay text
const SAFE_SCHEMES = new Set(["http:", "https:", "mailto:"]);
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)(?:\s+#+)?\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:\s+(.*)|$)/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const ADDRESS = /^(?:https?:\/\/|mailto:)[^\s<>"']+/;

/** Parse a text into blocks {type, ...}: heading, paragraph, code, list, quote, table, rule. [pure] */
export function parse(text, depth = 0) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const blocks = [];
  let paragraph = [];
  const endParagraph = () => {
    if (paragraph.length) blocks.push({ type: "paragraph", text: paragraph.join("\n") });
    paragraph = [];
  };
  const add = (block) => {
    endParagraph();
    blocks.push(block);
  };
  for (let at = 0; at < lines.length; ) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    const heading = fence ? null : HEADING.exec(line);
    const item = ITEM.exec(line);
    if (!line.trim()) {
      endParagraph();
      at += 1;
    } else if (fence) {
      const [code, next] = fenced(lines, at, fence[1]);
      add({ type: "code", language: fence[2].trim().split(/\s+/)[0] ?? "", text: code });
      at = next;
    } else if (heading) {
      add({ type: "heading", level: heading[1].length, text: heading[2] });
      at += 1;
    } else if (RULE.test(line)) {
      add({ type: "rule" });
      at += 1;
    } else if (QUOTE.test(line) && depth < MAX_DEPTH) {
      const inner = [];
      while (at < lines.length && QUOTE.test(lines[at])) inner.push(QUOTE.exec(lines[at++])[1]);
      add({ type: "quote", blocks: parse(inner.join("\n"), depth + 1) });
    } else if (item && depth < MAX_DEPTH && (!paragraph.length || !/^\d/.test(item[2]) || /^1[.)]/.test(item[2]))) {
      const [list, next] = readList(lines, at, depth);
      add(list);
      at = next;
    } else if (line.includes("|") && at + 1 < lines.length && lines[at + 1].includes("-") && DIVIDER.test(lines[at + 1])) {
      const [table, next] = readTable(lines, at);
      add(table);
      at = next;
    } else {
      paragraph.push(line);
      at += 1;
    }
  }
  endParagraph();
  return blocks;
}

/** The code after a fence and the line after it. A fence that is never closed lasts to the end, as while streaming. */
function fenced(lines, at, fence) {
  const closing = new RegExp(`^ {0,3}${fence[0] === "~" ? "~" : "`"}{${fence.length},}\\s*$`);
  let end = at + 1;
  while (end < lines.length && !closing.test(lines[end])) end += 1;
  return [lines.slice(at + 1, end).join("\n"), end + 1];
}

function readList(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  const indent = first[1].length;
  const isOrdered = /\d/.test(first[2]);
  const items = [];
  let inner;
  while (at < lines.length) {
    const line = lines[at];
    const item = ITEM.exec(line);
    const margin = line.search(/\S/);
    if (item && item[1].length <= indent + 1 && item[1].length >= indent && /\d/.test(item[2]) === isOrdered && !RULE.test(line)) {
      inner = { width: item[1].length + item[2].length + 1, lines: [item[3] ?? ""] };
      items.push(inner);
    } else if (margin < 0) {
      while (at + 1 < lines.length && !lines[at + 1].trim()) at += 1;
      const next = lines[at + 1];
      if (next === undefined || (next.search(/\S/) <= indent && !ITEM.test(next))) break;
      inner.lines.push("");
    } else if (margin > indent) {
      inner.lines.push(line.slice(Math.min(margin, inner.width)));
    } else if (item || inner.lines.at(-1) === "" || FENCE.test(line) || HEADING.test(line) || QUOTE.test(line)) {
      break;
    } else {
      inner.lines.push(line); // the lazy continuation of a paragraph
    }
    at += 1;
  }
  const start = isOrdered ? Number.parseInt(first[2], 10) : undefined;
  return [{ type: "list", start, items: items.map((one) => parse(one.lines.join("\n"), depth + 1)) }, at];
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replace(/\\\|/g, "|"));

function readTable(lines, at) {
  const head = cells(lines[at]);
  const rows = [];
  for (at += 2; at < lines.length && lines[at].includes("|"); at += 1) rows.push(cells(lines[at]).slice(0, head.length));
  return [{ type: "table", head, rows }, at];
}

/** Parse the text of one block into spans: text, or {type, ...} with code, strong, emphasis, strike, link, break. [pure] */
export function parseInline(text, depth = 0) {
  const spans = [];
  const missing = new Set(); // delimiters without an end in the rest of this text
  let plain = "";
  const add = (span, length) => {
    if (plain) spans.push(plain);
    plain = "";
    spans.push(span);
    return length;
  };
  const until = (end, from) => {
    if (missing.has(end)) return -1;
    const found = text.indexOf(end, from);
    if (found < 0) missing.add(end);
    return found;
  };
  for (let at = 0; at < text.length; ) {
    const char = text[at];
    if (char === "\\" && /[\\`*_{}[\]()#+\-.!~|<>]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
    } else if (char === "\n") {
      plain = plain.replace(/ +$/, "");
      at += add({ type: "break" }, 1);
    } else if (char === "`") {
      const ticks = /^`+/.exec(text.slice(at, at + 32))[0];
      const end = until(ticks, at + ticks.length);
      if (end > 0) at += add({ type: "code", text: text.slice(at + ticks.length, end) }, end + ticks.length - at);
      else {
        plain += ticks;
        at += ticks.length;
      }
    } else if ((char === "*" || char === "_" || char === "~") && depth < MAX_DEPTH) {
      const span = emphasis(text, at, until, depth);
      if (span) at += add(span, span.length);
      else {
        plain += char;
        at += 1;
      }
    } else if (char === "[" || (char === "!" && text[at + 1] === "[")) {
      const link = depth < MAX_DEPTH ? readLink(text, char === "!" ? at + 1 : at, until) : undefined;
      if (link) at = add({ type: "link", address: link.address, spans: parseInline(link.label, depth + 1) }, link.end);
      else {
        plain += char;
        at += 1;
      }
    } else if (beginsAddress(text, at) && !/\w/.test(text[at - 1] ?? "")) {
      const skipped = char === "<" ? 1 : 0;
      const found = ADDRESS.exec(text.slice(at + skipped, at + 2_000))?.[0].replace(/[.,;:!?)\]*_]+$/, "");
      if (found) {
        const isClosed = skipped && text[at + 1 + found.length] === ">";
        if (skipped && !isClosed) plain += "<";
        at += add({ type: "link", address: found, spans: [found] }, found.length + skipped + (isClosed ? 1 : 0));
      } else {
        plain += char;
        at += 1;
      }
    } else {
      plain += char;
      at += 1;
    }
  }
  if (plain) spans.push(plain);
  return spans;
}

function beginsAddress(text, at) {
  const begin = text[at] === "<" ? at + 1 : at;
  return ["https://", "http://", "mailto:"].some((scheme) => text.startsWith(scheme, begin));
}

function emphasis(text, at, until, depth) {
  const char = text[at];
  const isDouble = text[at + 1] === char;
  if (char === "~" && !isDouble) return undefined;
  if (char === "_" && /\w/.test(text[at - 1] ?? "")) return undefined; // a name such as max_tokens
  const mark = isDouble ? char + char : char;
  const begin = at + mark.length;
  if (!text[begin] || /\s/.test(text[begin])) return undefined;
  let end = until(mark, begin);
  while (end > 0 && !isDouble && text[end + 1] === char) end = text.indexOf(mark, end + 2); // the start of a double one
  if (end <= begin || /\s/.test(text[end - 1])) return undefined;
  if (char === "_" && /\w/.test(text[end + mark.length] ?? "")) return undefined;
  const type = char === "~" ? "strike" : isDouble ? "strong" : "emphasis";
  return { type, spans: parseInline(text.slice(begin, end), depth + 1), length: end + mark.length - at };
}

function readLink(text, at, until) {
  const close = until("](", at + 1);
  if (close < 0 || text.slice(at + 1, close).includes("[")) return undefined;
  const end = until(")", close + 2);
  if (end < 0) return undefined;
  const address = text.slice(close + 2, end).trim().split(/\s+"/)[0];
  return /\s/.test(address) ? undefined : { label: text.slice(at + 1, close), address, end: end + 1 };
}

/** The address if it is safe to open, else undefined. [pure] */
export function safeAddress(address) {
  try {
    const url = new URL(address);
    return SAFE_SCHEMES.has(url.protocol) ? url.href : undefined;
  } catch {
    return undefined; // relative addresses would lead into this page's own origin
  }
}

/** Build the nodes of a Markdown text. */
export function render(text) {
  const root = make("div", "markdown");
  root.dir = "auto";
  root.append(...parse(text).map(renderBlock));
  return root;
}

function renderBlock(block) {
  switch (block.type) {
    case "heading":
      return make("p", `heading heading-${block.level}`, ...renderSpans(block.text)); // not h1 to h6: those are the page's
    case "code":
      return renderCode(block);
    case "list": {
      const list = make(block.start === undefined ? "ul" : "ol", "", ...block.items.map(renderItem));
      if (block.start > 1) list.start = block.start;
      return list;
    }
    case "quote":
      return make("blockquote", "", ...block.blocks.map(renderBlock));
    case "table": {
      const head = make("thead", "", make("tr", "", ...block.head.map((cell) => make("th", "", ...renderSpans(cell)))));
      const rows = block.rows.map((row) => make("tr", "", ...row.map((cell) => make("td", "", ...renderSpans(cell)))));
      return make("div", "table", make("table", "", head, make("tbody", "", ...rows)));
    }
    case "rule":
      return make("hr", "");
    default:
      return make("p", "", ...renderSpans(block.text));
  }
}

function renderItem(blocks) {
  // A list of short items reads better without a paragraph around each.
  const [first, ...rest] = blocks;
  if (first?.type === "paragraph") return make("li", "", ...renderSpans(first.text), ...rest.map(renderBlock));
  return make("li", "", ...blocks.map(renderBlock));
}

function renderCode({ language, text }) {
  const button = make("button", "copy", "Copy");
  button.dataset.copies = text;
  const code = make("pre", "", make("code", "", text));
  code.dir = "ltr";
  return make("div", "code", make("div", "code-head", make("span", "", language), button), code);
}

function renderSpans(text) {
  return parseInline(text).map(renderSpan);
}

const TAGS = { strong: "strong", emphasis: "em", strike: "s", code: "code" };

function renderSpan(span) {
  if (typeof span === "string") return document.createTextNode(span);
  if (span.type === "break") return make("br", "");
  if (span.type === "code") return make("code", "", span.text);
  if (span.type !== "link") return make(TAGS[span.type], "", ...span.spans.map(renderSpan));
  const address = safeAddress(span.address);
  const label = span.spans.map(renderSpan);
  if (!address) return make("span", "", ...label, ` (${span.address})`);
  const link = make("a", "", ...label);
  link.href = address;
  link.target = "_blank";
  link.rel = "noopener noreferrer nofollow";
  link.title = address;
  return link;
}
