// The list of participants: one compact row each; only visible rows exist in the page. Owns rows, keyboard and scrolling. Does not know the
// order of participants, or why one is urgent.

import { aged } from "./board.js";
import { make, makeText, setText } from "./dom.js";

const ROW_HEIGHT = 62;
const PLAIN_HEIGHT = 40; // of a row without a context
const COMPACT_HEIGHT = 34; // one line each
const HEADING_HEIGHT = 30;
const COMPACT_ABOVE = 12; // with more agents, as in the terminal
const OVERSCAN = 4;

export class ParticipantList {
  /** Fills `box`, a scrolling element with the role listbox. Calls `onSelect(id)`, and `onOpen(id)` on Enter or a click. */
  constructor(box, { onSelect, onOpen, age }) {
    this._box = box;
    this._space = make("div", "rows");
    this._space.role = "presentation";
    box.replaceChildren(this._space);
    this._onSelect = onSelect;
    this._onOpen = onOpen;
    this._age = age;
    this._lines = [];
    this._tops = [];
    this._index = new Map();
    this._rows = new Map(); // by participant
    this._free = [];
    this._headings = [];
    this._selected = undefined;
    this._me = undefined;
    this._events = new AbortController();
    const { signal } = this._events;
    box.addEventListener("scroll", () => this._drawSoon(), { passive: true, signal });
    box.addEventListener("keydown", (event) => this._key(event), { signal });
    box.addEventListener("click", (event) => this._click(event), { signal });
    this._sizes = new ResizeObserver(() => this._drawSoon());
    this._sizes.observe(box);
  }

  close() {
    this._events.abort();
    this._sizes.disconnect();
    if (this._drawing !== undefined) cancelAnimationFrame(this._drawing);
    this._space.replaceChildren();
  }

  /** Show groups [{name, about}, lines] in this order. `selected` is the id of one line or undefined, `me` the signed-in participant. */
  show(groups, selected, me) {
    const lines = groups.flatMap(([, own]) => own);
    this._lines = lines;
    this._selected = selected;
    this._me = me;
    this._isCompact = lines.filter((line) => line.has_context).length > COMPACT_ABOVE;
    this._box.dataset.compact = String(this._isCompact);
    let top = 0;
    this._tops = [];
    const headings = [];
    for (const [title, own] of groups) {
      if (title.name) {
        headings.push(heading(title, top));
        top += HEADING_HEIGHT;
      }
      for (const line of own) {
        this._tops.push(top);
        top += this._heightOf(line);
      }
    }
    for (const node of this._headings) node.remove();
    this._headings = headings;
    this._space.prepend(...headings);
    this._index = new Map(lines.map((line, index) => [line.id, index]));
    this._space.style.height = `${top}px`;
    this._draw();
  }

  _heightOf(line) {
    return this._isCompact ? COMPACT_HEIGHT : line.has_context ? ROW_HEIGHT : PLAIN_HEIGHT;
  }

  /** Show a new line of a participant at its present place; redraws one row, if it is in view. */
  update(line) {
    const index = this._index.get(line.id);
    if (index === undefined) return;
    this._lines[index] = line;
    const row = this._rows.get(line.id);
    if (row) this._fill(row, line);
  }

  /** Bring a participant's row into view. */
  reveal(id) {
    const index = this._index.get(id);
    if (index === undefined) return;
    const box = this._box;
    const [top, height] = [this._tops[index], this._heightOf(this._lines[index])];
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + height > box.scrollTop + box.clientHeight) box.scrollTop = top + height - box.clientHeight;
    this._draw();
  }

  _drawSoon() {
    this._drawing ??= requestAnimationFrame(() => {
      this._drawing = undefined;
      this._draw();
    });
  }

  _draw() {
    const { scrollTop, clientHeight } = this._box;
    let first = Math.max(0, this._tops.findLastIndex((top) => top <= scrollTop) - OVERSCAN);
    const end = scrollTop + clientHeight;
    const visible = new Set();
    const shown = [];
    for (; first < this._lines.length && (this._tops[first] <= end || shown.length < OVERSCAN); first += 1) shown.push(first);
    for (const index of shown) visible.add(this._lines[index].id);
    const active = this._index.get(this._selected);
    if (active !== undefined && !visible.has(this._selected)) shown.push(active); // aria-activedescendant names this row
    if (active !== undefined) visible.add(this._selected);
    for (const [id, row] of this._rows) {
      if (visible.has(id)) continue;
      this._rows.delete(id);
      row.node.remove();
      this._free.push(row);
    }
    for (const index of shown) this._place(index);
    const row = this._rows.get(this._selected);
    if (row) this._box.setAttribute("aria-activedescendant", row.node.id);
    else this._box.removeAttribute("aria-activedescendant");
  }

  _place(index) {
    const line = this._lines[index];
    let row = this._rows.get(line.id);
    if (!row) {
      row = this._free.pop() ?? newRow();
      this._rows.set(line.id, row);
      this._space.append(row.node);
    }
    set(row, "transform", `translateY(${this._tops[index]}px)`, (value) => (row.node.style.transform = value));
    set(row, "position", index + 1, (value) => row.node.setAttribute("aria-posinset", value));
    set(row, "size", this._lines.length, (value) => row.node.setAttribute("aria-setsize", value));
    set(row, "selected", line.id === this._selected, (value) => row.node.setAttribute("aria-selected", value));
    this._fill(row, line);
  }

  _fill(row, line) {
    if (row.line === line) return;
    row.line = line;
    const { node, name, word, gauge, percent } = row;
    set(row, "id", line.id, (value) => (node.dataset.id = value));
    set(row, "tone", line.tone, (value) => (node.dataset.tone = value));
    setText(name, line.id === this._me ? `${line.id} (you)` : line.id);
    setText(word, line.id === this._me && !line.connected ? "on this page" : line.word);
    set(row, "quiet", !line.has_context, (value) => node.classList.toggle("plain", value));
    if (!line.has_context) {
      set(row, "label", `${line.id}, ${line.word}`, (value) => node.setAttribute("aria-label", value));
      set(row, "title", `${line.id}\n${line.word}`, (value) => (node.title = value));
      return;
    }
    set(row, "gauge", JSON.stringify(line.gauge), () => drawGauge(gauge, line.gauge));
    setText(percent, line.share === "?" ? "" : line.share);
    this._fillAges(row, line);
  }

  /** Count the ages of the rows in view on. */
  tick() {
    for (const row of this._rows.values()) if (row.line?.has_context) this._fillAges(row, row.line);
  }

  _fillAges(row, line) {
    const known = aged([line.known, line.old].filter(Boolean).join(" · "), this._age);
    setText(row.amount, `${line.figure} · ${known}`);
    set(row, "label", `${line.id}, ${line.word}, ${line.figure} tokens, ${known}`, (value) => row.node.setAttribute("aria-label", value));
    set(row, "title", aged(rowTitle(line), this._age), (value) => (row.node.title = value));
  }

  _click(event) {
    const id = event.target.closest("[role=option]")?.dataset.id;
    if (id === undefined) return;
    this._onSelect(id);
    this._onOpen(id);
  }

  _key(event) {
    const last = this._lines.length - 1;
    if (last < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    const at = this._index.get(this._selected) ?? -1;
    const page = Math.max(1, Math.floor(this._box.clientHeight / (this._isCompact ? COMPACT_HEIGHT : ROW_HEIGHT)) - 1);
    const next = { ArrowDown: at + 1, ArrowUp: at < 0 ? last : at - 1, Home: 0, End: last, PageDown: at + page, PageUp: at - page }[event.key];
    if (next !== undefined) {
      event.preventDefault();
      const { id } = this._lines[Math.max(0, Math.min(last, next))];
      this._onSelect(id);
      this.reveal(id);
    } else if (event.key === "Enter" && at >= 0) {
      event.preventDefault();
      this._onOpen(this._selected);
    }
  }
}

/** What the row has no room for: a long name, why it is in its state, when it compacts, and its last compaction. */
const rowTitle = ({ id, word, remarks, due, compaction }) => [id, word, ...remarks, due, compaction && `compacted: ${compaction.line}`].filter(Boolean).join("\n");

/** Build an empty gauge: {gauge, fill, mark}. */
export function makeGauge() {
  const fill = make("div", "gauge-fill");
  const mark = make("div", "gauge-mark");
  const gauge = make("div", "gauge", make("div", "gauge-track", fill), mark);
  return { gauge, fill, mark };
}

/** Draw the gauge of a view. A figure from before is drawn as an outline. */
export function drawGauge({ gauge, fill, mark }, { pattern, tone, fill: share, past, mark: at, is_compacting: isCompacting }) {
  Object.assign(gauge.dataset, { pattern, tone, compacting: isCompacting === true });
  fill.style.width = `${100 * (share ?? past ?? 0)}%`;
  mark.hidden = (at ?? undefined) === undefined;
  if (!mark.hidden) mark.style.left = `${100 * at}%`;
}

function heading({ name, about }, top) {
  const node = make("p", "group-name", makeText("b", "", name), make("span", "soft", about));
  node.role = "presentation";
  node.style.transform = `translateY(${top}px)`;
  return node;
}

let rows = 0;

function newRow() {
  const name = makeText("b", "row-name", "");
  const word = makeText("span", "row-word", "");
  const amount = make("span", "row-amount");
  const percent = make("span", "row-percent");
  const gauge = makeGauge();
  const node = make("div", "row", make("span", "row-head", name, word), gauge.gauge, make("span", "row-figures", amount, percent));
  node.role = "option";
  node.id = `row-${(rows += 1)}`;
  return { node, name, word, gauge, amount, percent, drawn: {}, line: undefined };
}

/** Apply a value only if it differs from the one that is drawn. */
function set(row, key, value, apply) {
  if (row.drawn[key] === value && key in row.drawn) return;
  row.drawn[key] = value;
  apply(value);
}
