// One participant's card: its figures, and the button that compacts it.

import { byId, make, makeText, setText, setTextOrHide } from "./dom.js";
import { MessageList } from "./message_list.js";
import { drawSparkline } from "./sparkline.js";
import * as text from "./text.js";

const MAX_ACTIVITY_LINES = 60;
const MAX_SUGGESTIONS = 3;
const PARTS = ["prefix", "summary", "pins", "messages", "tool_results", "reply", "unsent"];

export class Card {
  /** Calls `onCompact(targetTokens or undefined)` when the button is pressed. */
  constructor(id, onCompact) {
    this.node = byId("card-template").content.firstElementChild.cloneNode(true);
    this._slots = {};
    for (const node of this.node.querySelectorAll("[data-slot]")) this._slots[node.dataset.slot] = node;
    const { name, form, target } = this._slots;
    name.textContent = id;
    this._label("compact", `Compact ${id}`);
    target.setAttribute("aria-label", `Target for ${id}, in tokens`);
    this._slots.activity.setAttribute("aria-label", `Messages and thoughts of ${id}`);
    /** The messages this participant sends and receives, and its thoughts. */
    this.activity = new MessageList(this._slots.activity, this._slots["no-activity"], MAX_ACTIVITY_LINES);
    this._id = id;
    this._drawn = {};
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this._slots.compact.getAttribute("aria-disabled") !== "true") onCompact(targetOf(target));
    });
  }

  /** Show an entry of the board. `elapsedMs(time)` and `receivedMs` are ages; `request` comes from CompactRequests. */
  show(entry, request, elapsedMs, receivedMs) {
    const { status } = entry;
    const age = (wireTime) => {
      const ms = elapsedMs(wireTime);
      return ms === undefined ? undefined : text.span(ms);
    };
    const receivedAgo = receivedMs === undefined ? undefined : text.span(receivedMs);
    this.node.dataset.severity = text.severityOf(status);
    this.node.dataset.basis = text.basisOf(status);
    this.node.dataset.away = String(!entry.connected);
    this.node.dataset.compacting = String(status.status === "compacting" || request?.isOpen === true);
    this._head(entry);
    this._gauge(status);
    setText(this._slots.known, text.known(status, receivedAgo, age));
    setTextOrHide(this._slots.remark, text.remarks(entry, receivedAgo, age));
    setTextOrHide(this._slots.last, text.lastCompaction(status.context, age));
    const replaced = text.replaced(status.context);
    setTextOrHide(this._slots.replaced, replaced && `Last compaction: ${replaced}.`);
    this._once("sparkline", [entry.samples.length, entry.samples.at(-1), status.max_tokens], () => this._sparkline(entry));
    this._once("parts", status.context?.breakdown, () => this._parts(status.context?.breakdown ?? []));
    this._once("savings", status.context?.suggestions, () => this._savings(status.context?.suggestions ?? []));
    this._figures(text.figures(status, age));
    this._answer(entry, request);
  }

  _head({ status, connected }) {
    const { about, word, tokens, window, level } = this._slots;
    const count = text.counted(status.messages_in_context, "message");
    setText(about, [status.context?.model, count].filter(Boolean).join(" · "));
    setTextOrHide(word, connected ? text.statusWord(status) : "disconnected");
    setText(tokens, text.amount(status));
    setText(window, text.ofWindow(status));
    setTextOrHide(level, text.level(status));
  }

  _gauge(status) {
    const { gauge, fill, mark } = this._slots;
    const { tokens, max_tokens: max } = status;
    const isMeasured = tokens !== undefined && max !== undefined;
    fill.style.width = isMeasured ? `${Math.min(100, (100 * tokens) / max)}%` : "0";
    gauge.setAttribute("role", isMeasured ? "meter" : "img");
    const label = `${text.amount(status)} ${text.ofWindow(status)}, ${text.basisOf(status)}`;
    gauge.setAttribute("aria-label", isMeasured ? `Context of ${this._id}` : `Context of ${this._id}: ${label}`);
    const numbers = isMeasured
      ? { "aria-valuemin": 0, "aria-valuemax": max, "aria-valuenow": Math.min(tokens, max), "aria-valuetext": label }
      : {};
    for (const name of ["aria-valuemin", "aria-valuemax", "aria-valuenow", "aria-valuetext"]) {
      if (name in numbers) gauge.setAttribute(name, String(numbers[name]));
      else gauge.removeAttribute(name);
    }
    const at = status.context?.compact_at_tokens;
    const hasMark = at !== undefined && max !== undefined && at <= max;
    mark.hidden = !hasMark;
    if (hasMark) mark.style.left = `${(100 * at) / max}%`;
  }

  _sparkline(entry) {
    const svg = drawSparkline(entry.samples, entry.status);
    this._slots.sparkline.replaceChildren(...(svg ? [svg] : []));
    this._slots.sparkline.hidden = !svg;
  }

  _parts(breakdown) {
    const parts = breakdown.filter((part) => part.tokens > 0);
    this._slots.parts.hidden = parts.length === 0;
    this._slots.strip.replaceChildren(...parts.map(segment));
    this._slots.legend.replaceChildren(...parts.map(legendRow));
  }

  _savings(suggestions) {
    const best = [...suggestions].sort((a, b) => b.tokens_saved - a.tokens_saved).slice(0, MAX_SUGGESTIONS);
    this._slots.savings.hidden = best.length === 0;
    this._slots.savings.replaceChildren(...best.map((one) => makeText("li", "", text.saving(one))));
  }

  _figures(rows) {
    const list = this._slots.figures;
    if (list.children.length !== rows.length) {
      list.replaceChildren(...rows.map(() => make("div", "", make("dt"), makeText("dd", "", ""))));
    }
    rows.forEach(([label, value], index) => {
      const [term, detail] = list.children[index].children;
      setText(term, label);
      setText(detail, value);
    });
  }

  _answer(entry, request) {
    const { compact, answer } = this._slots;
    // aria-disabled instead of disabled, so that the button that was just pressed keeps the focus.
    compact.setAttribute("aria-disabled", String(request?.isOpen === true || !entry.connected));
    compact.title = entry.connected ? "" : `${this._id} is disconnected`;
    this._label("compact", request?.isOpen ? `Compacting ${this._id}` : `Compact ${this._id}`);
    setTextOrHide(answer, request?.text);
    answer.dataset.refusal = String(request?.isRefusal === true);
  }

  _label(slot, label) {
    this._slots[slot].setAttribute("aria-label", label);
  }

  /** Redraw a part of the card only when its data changed. */
  _once(piece, shown, draw) {
    const key = JSON.stringify(shown ?? null);
    if (this._drawn[piece] === key) return;
    this._drawn[piece] = key;
    draw();
  }
}

function targetOf(input) {
  const value = input.value.trim();
  return input.closest("details").open && value !== "" ? Number(value) : undefined;
}

const partClass = ({ part }) => (PARTS.includes(part) ? part : "other");

function segment(part) {
  const node = make("span", "segment");
  node.dataset.part = partClass(part);
  node.dataset.basis = part.basis === "projected" ? "projected" : "exact";
  node.style.flexGrow = String(part.tokens);
  node.title = `${text.partName(part.part)}: ${text.partTokens(part)} tokens`;
  return node;
}

function legendRow(part) {
  const swatch = make("span", "swatch");
  swatch.dataset.part = partClass(part);
  return make("li", "", swatch, makeText("span", "", text.partName(part.part)), " ", make("b", "", text.partTokens(part)));
}
