// One participant's card: its figures on the page, and the button to compact it.

import { byId, make, makeText, say, sayOrHide } from "./dom.js";
import { Talk } from "./talk.js";
import { drawTrail } from "./trail.js";
import * as words from "./words.js";

const LONGEST_STORY = 60;
const MOST_SAVINGS = 3;
const PARTS = ["prefix", "summary", "pins", "messages", "tool_results", "reply", "unsent"];

export class Card {
  /** `onCompact(targetTokens or undefined)` when the viewer asks for it. */
  constructor(id, onCompact) {
    this.node = byId("card-template").content.firstElementChild.cloneNode(true);
    this._slots = {};
    for (const node of this.node.querySelectorAll("[data-slot]")) this._slots[node.dataset.slot] = node;
    const { name, form, target } = this._slots;
    name.textContent = id;
    this._label("compact", `Compact ${id}`);
    target.setAttribute("aria-label", `Compact ${id} to at most this many tokens`);
    this._slots.story.setAttribute("aria-label", `What ${id} says, hears and thinks`);
    /** What this participant says, hears and thinks. */
    this.story = new Talk(this._slots.story, this._slots.silence, LONGEST_STORY);
    this._id = id;
    this._drawn = {};
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this._slots.compact.getAttribute("aria-disabled") !== "true") onCompact(targetOf(target));
    });
  }

  /** Show an entry of the board. `elapsedMs(wireTime)` and `receivedMs` are ages now; `request` as CompactRequests has it. */
  show(entry, request, elapsedMs, receivedMs) {
    const { status } = entry;
    const age = (wireTime) => {
      const ms = elapsedMs(wireTime);
      return ms === undefined ? undefined : words.span(ms);
    };
    const receivedAgo = receivedMs === undefined ? undefined : words.span(receivedMs);
    this.node.dataset.severity = words.severityOf(status);
    this.node.dataset.basis = words.basisOf(status);
    this.node.dataset.away = String(!entry.connected);
    this.node.dataset.compacting = String(status.status === "compacting" || request?.isOpen === true);
    this._head(entry);
    this._gauge(status);
    say(this._slots.known, words.known(status, receivedAgo, age));
    sayOrHide(this._slots.remark, words.remarks(entry, receivedAgo));
    sayOrHide(this._slots.last, words.lastCompaction(status.context, age));
    const replaced = words.replaced(status.context);
    sayOrHide(this._slots.replaced, replaced && `Last compaction: ${replaced}.`);
    this._once("trail", [entry.trail.length, entry.trail.at(-1), status.max_tokens], () => this._trail(entry));
    this._once("parts", status.context?.breakdown, () => this._parts(status.context?.breakdown ?? []));
    this._once("savings", status.context?.suggestions, () => this._savings(status.context?.suggestions ?? []));
    this._figures(words.figures(status, age));
    this._answer(entry, request);
  }

  _head({ status, connected }) {
    const { about, word, tokens, window, level } = this._slots;
    const count = words.counted(status.messages_in_context, "message");
    say(about, [status.context?.model, count].filter(Boolean).join(" · "));
    sayOrHide(word, connected ? words.statusWord(status) : "not connected");
    say(tokens, words.amount(status));
    say(window, words.ofWindow(status));
    sayOrHide(level, words.level(status));
  }

  _gauge(status) {
    const { gauge, fill, mark } = this._slots;
    const { tokens, max_tokens: max } = status;
    const isMeasured = tokens !== undefined && max !== undefined;
    fill.style.width = isMeasured ? `${Math.min(100, (100 * tokens) / max)}%` : "0";
    gauge.setAttribute("role", isMeasured ? "meter" : "img");
    const text = `${words.amount(status)} ${words.ofWindow(status)}, ${words.basisOf(status)}`;
    gauge.setAttribute("aria-label", isMeasured ? `Context of ${this._id}` : `Context of ${this._id}: ${text}`);
    const numbers = isMeasured
      ? { "aria-valuemin": 0, "aria-valuemax": max, "aria-valuenow": Math.min(tokens, max), "aria-valuetext": text }
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

  _trail(entry) {
    const svg = drawTrail(entry.trail, entry.status);
    this._slots.trail.replaceChildren(...(svg ? [svg] : []));
    this._slots.trail.hidden = !svg;
  }

  _parts(breakdown) {
    const parts = breakdown.filter((part) => part.tokens > 0);
    this._slots.parts.hidden = parts.length === 0;
    this._slots.strip.replaceChildren(...parts.map(segment));
    this._slots.legend.replaceChildren(...parts.map(legendRow));
  }

  _savings(suggestions) {
    const best = [...suggestions].sort((a, b) => b.tokens_saved - a.tokens_saved).slice(0, MOST_SAVINGS);
    this._slots.savings.hidden = best.length === 0;
    this._slots.savings.replaceChildren(...best.map((one) => makeText("li", "", words.saving(one))));
  }

  _figures(rows) {
    const list = this._slots.figures;
    if (list.children.length !== rows.length) {
      list.replaceChildren(...rows.map(() => make("div", "", make("dt"), makeText("dd", "", ""))));
    }
    rows.forEach(([label, value], index) => {
      const [term, text] = list.children[index].children;
      say(term, label);
      say(text, value);
    });
  }

  _answer(entry, request) {
    const { compact, answer } = this._slots;
    // aria-disabled instead of disabled: the button keeps the focus of whoever just pressed it.
    compact.setAttribute("aria-disabled", String(request?.isOpen === true || !entry.connected));
    compact.title = entry.connected ? "" : `${this._id} is not connected`;
    this._label("compact", request?.isOpen ? `Compacting ${this._id}` : `Compact ${this._id}`);
    sayOrHide(answer, request?.text);
    answer.dataset.refusal = String(request?.isRefusal === true);
  }

  _label(slot, text) {
    this._slots[slot].setAttribute("aria-label", text);
  }

  /** Draw a piece again only when what it shows is another. */
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
  node.title = `${words.partName(part.part)}: ${words.partTokens(part)} tokens`;
  return node;
}

function legendRow(part) {
  const swatch = make("span", "swatch");
  swatch.dataset.part = partClass(part);
  return make("li", "", swatch, makeText("span", "", words.partName(part.part)), " ", make("b", "", words.partTokens(part)));
}
