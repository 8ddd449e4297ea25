// The conversation in the page. Owns the look of entries, the open parts, and scrolling with the newest entry. Entries come from
// `conversation`; only changed entries are drawn again.

import WORDS from "./words.json" with { type: "json" };
import { renderArguments, renderProposal, renderResult, Room } from "./arguments.js";
import { parseTime } from "./board.js";
import { isAbout } from "./conversation.js";
import { copyText, isPressed, make, makeText, setText } from "./dom.js";
import { render } from "./markdown.js";
import * as text from "./text.js";

const MAX_TEXT_CHARS = 10_000;
const MAX_NAMES = 6;
const MAX_ROWS = 50; // for the calls of a turn
const SLOWER = 10; // the pause before an entry is drawn again, in drawing times of the entry
const SOON_MS = 50;
const SLICE_MS = 40; // of drawing; then the page handles input before it continues
const FOLLOW_PIXELS = 60;
const NOT_OFFERED = "Not in your queue (yet), so it cannot be approved here.";

export class ConversationView {
  /**
   * `list` scrolls, `empty` is shown without entries, and `newest` is the button to its end. `onDecide(entry, decision)`
   * is called for proposals with "approve", "reject"; `onSelect(id)` for the name of a participant.
   */
  constructor({ list, empty, newest }, conversation, { me, mayDecide, mayApprove, onDecide, onSelect, receiptOf, opened = new Set(), onOpen, changesOf = () => undefined }) {
    this._list = list;
    this._empty = empty;
    this._newest = newest;
    this._conversation = conversation;
    this._me = me;
    this._mayDecide = mayDecide;
    this._mayApprove = mayApprove; // whether the gateway has offered the approval of a proposal
    this._onDecide = onDecide;
    this._onSelect = onSelect;
    this._receiptOf = receiptOf; // asks a participant for the receipt of a chat
    this._opened = opened;
    this._onOpen = onOpen; // called when a proposed call was opened
    this._changesOf = changesOf; // the changes that a proposed call would make
    this._nodes = new Map();
    this._stories = new Map(); // the last displayed receipts that the user opened
    this._whole = new Set(); // entries that the user wants to see in full
    this._notBeforeMs = new Map();
    this._late = new Set();
    this._only = undefined;
    this._events = new AbortController();
    const { signal } = this._events;
    list.replaceChildren();
    list.addEventListener("click", (event) => this._click(event), { signal });
    list.addEventListener("pointermove", ({ clientX, clientY }) => (this._pointer = [clientX, clientY]), { passive: true, signal });
    list.addEventListener("pointerleave", () => (this._pointer = undefined), { signal });
    list.addEventListener("toggle", (event) => void this._showStory(event.target), { signal, capture: true });
    list.addEventListener("scroll", () => (this._newest.hidden = this._isAtEnd()), { passive: true, signal });
    newest.addEventListener("click", () => this.toEnd(), { signal });
    newest.hidden = true;
    // The pane changes its size with the queue above it and the composer below it; keep its end in view.
    this._follows = true;
    this._height = 0;
    list.addEventListener("scroll", () => list.clientHeight === this._height && (this._follows = this._isAtEnd()), { passive: true, signal });
    this._sizes = new ResizeObserver(() => {
      this._height = list.clientHeight; // 0 while another pane is in view
      if (this._follows && this._height) this._follow();
    });
    this._sizes.observe(list);
  }

  close() {
    this._events.abort();
    clearTimeout(this._soon);
    this._sizes.disconnect();
    this._list.replaceChildren();
  }

  /** Show only entries about one participant; undefined shows all. */
  only(participant) {
    if (this._only === participant) return;
    this._only = participant;
    for (const [id, node] of this._nodes) node.hidden = this._isHidden(this._conversation.entries.get(id));
    this._showEmpty();
    this.toEnd();
  }

  /** Draw what changed since the last call. */
  draw(nowMs) {
    if (isPressed()) return this._drawSoon();
    const changed = new Set([...this._late, ...this._conversation.takeChanged()]);
    this._late.clear();
    if (!changed.size) return;
    const follows = this._follows;
    const untilMs = performance.now() + SLICE_MS;
    for (const id of changed) {
      if (performance.now() < untilMs) this._drawOne(id, nowMs);
      else this._late.add(id);
    }
    this._showEmpty();
    if (follows) this._follow();
    else this._newest.hidden = false;
    if (this._late.size) this._drawSoon();
  }

  /** Keep the end in view, but move no button that is about to be pressed. */
  _follow() {
    const under = this._pointer && document.elementFromPoint(...this._pointer);
    if (under?.closest(".buttons")) this._newest.hidden = false;
    else this.toEnd();
  }

  /** Draw what waits for its turn, also if nothing else happens. */
  _drawSoon() {
    clearTimeout(this._soon);
    this._soon = setTimeout(() => this.draw(Date.now()), SOON_MS);
  }

  /** Draw these entries above all others, and keep what the user reads in place. Returns how many are visible. */
  prepend(ids, nowMs) {
    const list = this._list;
    const belowTop = list.scrollHeight - list.scrollTop;
    list.style.overflowAnchor = "none"; // otherwise the browser would correct the position as well
    requestAnimationFrame(() => (list.style.overflowAnchor = ""));
    const first = list.querySelector("[data-entry]");
    const untilMs = performance.now() + SLICE_MS;
    for (const id of ids) {
      if (performance.now() < untilMs) this._drawOne(id, nowMs, first);
      else {
        this._place(id, make("article", "entry note", "…"), first);
        this._late.add(id);
      }
    }
    if (this._late.size) this._drawSoon();
    this._showEmpty();
    list.scrollTop = list.scrollHeight - belowTop;
    return ids.filter((id) => !this._nodes.get(id)?.hidden).length;
  }

  /** Draw open proposals again, because what the user may decide has changed, and the one with the id `decided`. */
  redrawProposals(decided = undefined) {
    const isStale = (entry) => entry.type === "proposal" && (entry.state === "open" || entry.id === decided);
    for (const [id, entry] of this._conversation.entries) if (isStale(entry) && this._nodes.has(id)) this._late.add(id);
  }

  toEnd() {
    this._list.scrollTop = this._list.scrollHeight;
    this._follows = true;
    this._newest.hidden = true;
  }

  _isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this._list;
    return scrollHeight - scrollTop - clientHeight < FOLLOW_PIXELS;
  }

  _isHidden(entry) {
    return this._only !== undefined && !isAbout(entry, this._only);
  }

  _showEmpty() {
    const isEmpty = ![...this._nodes.values()].some((node) => !node.hidden);
    this._empty.hidden = !isEmpty;
    setText(this._empty, this._only === undefined ? "No messages yet." : `No messages to or from ${this._only} yet.`);
  }

  _drawOne(id, nowMs, above) {
    const entry = this._conversation.entries.get(id);
    if (!entry) {
      this._nodes.get(id)?.remove();
      this._nodes.delete(id);
      this._notBeforeMs.delete(id);
      this._whole.delete(id);
      this._stories.delete(id);
      return;
    }
    if (nowMs < (this._notBeforeMs.get(id) ?? 0)) return void this._late.add(id);
    const startMs = performance.now();
    let node;
    try {
      node = this._render(entry);
    } catch (error) {
      console.warn("entry not shown:", error);
      node = make("article", "entry note", "This message cannot be shown.");
    }
    this._place(id, node, above);
    this._notBeforeMs.set(id, nowMs + SLOWER * (performance.now() - startMs));
  }

  /** Put the node of an entry in its place. */
  _place(id, node, above) {
    const before = this._nodes.get(id);
    node.dataset.entry = id;
    node.hidden = this._isHidden(this._conversation.entries.get(id));
    if (before?.isEqualNode(node)) return; // screen readers would read it again
    this._nodes.set(id, node);
    if (before) {
      const focused = keepState(before, node);
      before.replaceWith(node);
      focused?.focus({ preventScroll: true });
    } else if (above) above.before(node);
    else this._list.append(node);
  }

  _click(event) {
    const folded = event.target.closest("summary")?.parentElement;
    if (folded) folded.dataset.touched = "";
    const button = event.target.closest("button");
    if (!button) return;
    const entry = this._conversation.entries.get(button.closest("[data-entry]")?.dataset.entry);
    if (button.dataset.copies !== undefined) void copy(button);
    else if (button.dataset.decision && entry) this._onDecide(entry, button.dataset.decision);
    else if (button.dataset.whole && entry) {
      this._whole.add(entry.id);
      if (button.dataset.call) this._opened.add(button.dataset.call);
      if (button.dataset.call) this._onOpen?.();
      this._notBeforeMs.delete(entry.id);
      this._drawOne(entry.id, Date.now());
      // The button is gone. Continue reading at the opened part; the buttons for its decision come next.
      const opened = this._nodes.get(entry.id);
      opened.tabIndex = -1;
      opened.focus({ preventScroll: true });
    }
    else if (button.dataset.select) this._onSelect(button.dataset.select);
  }

  _render(entry) {
    const renderers = { chat: "_chat", turn: "_turn", tool: "_tool", proposal: "_proposal", thought: "_thought" };
    return renderers[entry.type] ? this[renderers[entry.type]](entry) : this._note(entry);
  }

  _head(entry, ...more) {
    const head = make("p", "said-by", this._name(entry.from));
    if (entry.to) {
      head.append(" → ");
      if (!entry.to.length) head.append("everyone");
      entry.to.forEach((name, index) => head.append(index ? ", " : "", makeText("bdi", "name", name)));
    }
    head.append(...more, timeOf(entry.endedTs ?? entry.ts));
    return head;
  }

  _name(id) {
    const button = makeText("button", "name", id);
    button.dataset.select = id;
    button.tabIndex = -1; // with the keyboard, use the list of participants
    return button;
  }

  _question(id) {
    const question = this._conversation.entries.get(id);
    const words = (question?.answer ?? question?.text)?.slice(0, 1_000).replace(/[`*]+/g, "").replace(/\s+/g, " ").trim();
    if (!words) return [];
    return [make("p", "about", `answers ${question.from}: “`, makeText("bdi", "", text.shortened(words, 300)), "”")];
  }

  _chat(entry) {
    const urgent = entry.isUrgent ? [makeText("span", "state urgent", "urgent")] : [];
    const node = make("article", "entry chat", this._head(entry, ...urgent), ...this._question(entry.question), ...body(entry.text, this._whole.has(entry.id)));
    node.dataset.mine = String(entry.from === this._me);
    const newest = [...new Map(entry.acknowledged.map((one) => [one.by, one])).values()];
    for (const one of newest.filter((each) => each.hasReceipt)) node.append(this._receipt(entry, one));
    const marks = newest.filter((one) => !one.hasReceipt).map((one) => one.words);
    if (entry.isCancelled) marks.push("cancelled");
    if (marks.length) node.append(makeText("p", "marks", marks.join(" · ")));
    return node;
  }

  /** The mark of a receiver, which opens what became of the message there. */
  _receipt(entry, one) {
    const lines = make("div", "story", ...(this._stories.get(entry.id)?.get(one.by) ?? []));
    lines.setAttribute("aria-live", "polite");
    const node = fold(`receipt-${one.by}`, makeText("span", "", one.words), lines);
    node.classList.add("receipt");
    node.dataset.by = one.by;
    return node;
  }

  /** Ask for the story of a message when its receipt is opened, and again after each change of it. */
  async _showStory(details) {
    const entry = this._conversation.entries.get(details.closest("[data-entry]")?.dataset.entry);
    const { by } = details.dataset;
    if (!details.open || by === undefined || !entry) return;
    const lines = details.lastElementChild;
    if (!lines.childNodes.length) setText(lines, `Asking ${by} …`);
    let found;
    try {
      found = storyNodes(await this._receiptOf(entry, by));
    } catch (error) {
      found = [makeText("p", "", error.message)];
    }
    const known = this._stories.get(entry.id) ?? new Map();
    this._stories.set(entry.id, known.set(by, found));
    lines.replaceChildren(...found);
  }

  _turn(entry) {
    const word = { running: "working …", lost: WORDS.turns.lost, cancelled: `cancelled${entry.reason ? `: ${entry.reason}` : ""}`, done: "" }[entry.state];
    const node = make("article", "entry turn", this._head({ ...entry, to: entry.to.length ? entry.to : undefined }, ...(word ? [makeText("span", "state", word)] : [])));
    node.dataset.state = entry.state;
    if (entry.state === "running") node.ariaBusy = "true"; // screen readers read it once it is complete
    node.append(...this._question(entry.question));
    const reasoning = [...entry.thoughts, entry.thinking].map((one) => one.trim()).filter(Boolean);
    if (reasoning.length) {
      const details = fold("reasoning", entry.state === "running" ? "Reasoning …" : "Reasoning", makeText("div", "reasoning", reasoning.join("\n\n").slice(-MAX_TEXT_CHARS)));
      details.open = entry.state === "running" && entry.answer === undefined;
      node.append(details);
    }
    const isWhole = this._whole.has(entry.id);
    const rows = isWhole ? entry.tools : entry.tools.slice(-MAX_ROWS);
    if (rows.length < entry.tools.length) node.append(showAll(`Show all calls (${text.counted(entry.tools.length - rows.length, "earlier one")})`));
    else if (entry.earlierTools) node.append(make("p", "marks", `${text.counted(entry.earlierTools, "earlier call")} no longer shown`));
    const first = entry.earlierTools + entry.tools.length - rows.length;
    for (const [index, row] of rows.entries()) node.append(toolRow(row, `tool-${first + index}`, isWhole));
    const said = entry.answer ?? entry.text;
    if (said.trim()) node.append(...body(said, isWhole));
    else if (entry.state === "running" && entry.hasHole) node.append(make("p", "marks", "The connection was lost; the answer appears when it is complete."));
    return node;
  }

  _tool(entry) {
    return make("article", "entry", this._head(entry), toolRow(entry.row, "tool", this._whole.has(entry.id)));
  }

  _proposal(entry) {
    const node = make("article", "entry proposal", this._head(entry, makeText("span", "state", entry.words)));
    node.dataset.state = entry.state;
    const { nodes: [call, ...args], key, isShown, note } = renderProposal("wants to call", entry, this._opened, entry.state === "open" ? { chars: 4_000, lines: 60 } : {}, this._changesOf(entry));
    const result = renderResult(entry.row.result, this._room(entry));
    node.append(call);
    if (entry.state === "open") node.append(...args);
    else if (args.length || result.length) node.append(fold("call", entry.row.state === "failed" ? "Failed" : result.length ? "Arguments and result" : "Arguments", ...args, ...result));
    for (const mark of node.querySelectorAll("[data-whole]")) mark.dataset.call = key;
    if (entry.state === "open" && this._mayDecide(entry)) {
      const isOffered = this._mayApprove(entry);
      const buttons = [["approve", "Approve"], ["reject", "Reject"]].map(([decision, label]) => {
        const button = make("button", decision === "approve" ? "primary" : "", label);
        button.dataset.decision = decision;
        button.disabled = decision === "approve" && !(isShown && isOffered); // only fully displayed calls can be approved
        button.setAttribute("aria-label", `${label} ${entry.row.tool} of ${entry.from}`);
        return button;
      });
      node.append(make("p", "buttons", ...buttons, make("span", "soft", note || (isOffered ? "" : NOT_OFFERED))));
    }
    return node;
  }

  _room(entry) {
    return new Room({ isWhole: this._whole.has(entry.id) });
  }

  _thought(entry) {
    return make("article", "entry thought", this._head({ ...entry, to: undefined }, " thinks"), makeText("div", "reasoning", entry.text.slice(0, MAX_TEXT_CHARS)));
  }

  _note(entry) {
    const words = entry.type === "presence" ? `${inFew(entry.about)} ${entry.verb}` : entry.words;
    const node = make("article", "entry note", make("p", "", timeOf(entry.ts), makeText("span", "", words)));
    const { answer } = entry;
    if (answer) node.append(makeText("p", "answer", `${answer.from}: ${text.answered(answer)}`));
    return node;
  }
}

/** Names in one line; of many the first, and how many more. */
function inFew(names) {
  const more = names.length - MAX_NAMES;
  return more > 1 ? `${names.slice(0, MAX_NAMES).join(", ")} and ${text.grouped(more)} more` : names.join(", ");
}

/** The nodes of a text: Markdown, and for a very long one its beginning and a button. */
function body(value, isWhole) {
  const more = value.length - MAX_TEXT_CHARS;
  if (more <= 0) return [render(value)];
  if (isWhole) return [make("pre", "whole", value)];
  return [render(value.slice(0, MAX_TEXT_CHARS)), showAll(`Show all (${text.grouped(more)} more characters)`)];
}

/** What became of a message: one line, and each step with its time. */
function storyNodes(receipt) {
  const steps = (receipt.story ?? []).map(([at, words]) => make("li", "", make("time", "", at ? text.clock(parseTime(at)) : "?"), makeText("span", "", words)));
  return [makeText("p", "", receipt.line), ...(steps.length ? [make("ol", "", ...steps)] : [])];
}

function showAll(words) {
  const button = make("button", "quiet", words);
  button.dataset.whole = "true";
  return button;
}

const STATES = { called: "…", answered: "answered", failed: "failed" };

function toolRow(row, key, isWhole) {
  const where = row.peer ? ` on ${row.peer}` : "";
  const brief = text.inBrief(row.args);
  const summary = make("span", "", makeText("code", "", row.tool), makeText("span", "soft", `${where}${brief ? ` · ${brief}` : ""}`), makeText("span", "state", row.request === undefined && row.state === "called" ? "" : STATES[row.state]));
  const details = fold(key, summary, ...renderArguments(row.args, new Room({ isWhole })), ...renderResult(row.result, new Room({ isWhole })));
  details.classList.add("tool");
  details.dataset.state = row.state;
  return details;
}

function fold(key, summary, ...children) {
  const details = make("details", "", make("summary", "", summary), ...children);
  details.dataset.key = key;
  return details;
}

/** Keep which parts the user opened or closed. Returns the element that takes the focus over, if one does. */
function keepState(before, after) {
  const focused = before.contains(document.activeElement) ? document.activeElement : undefined;
  const byKey = new Map([...after.querySelectorAll("details[data-key]")].map((one) => [one.dataset.key, one]));
  let next = focused === before ? Object.assign(after, { tabIndex: -1 }) : undefined;
  for (const old of before.querySelectorAll("details[data-key]")) {
    const now = byKey.get(old.dataset.key);
    if (!now) continue;
    const wasTouched = old.dataset.touched !== undefined;
    if (wasTouched) {
      now.open = old.open;
      now.dataset.touched = "";
    }
    if (focused && old.firstElementChild === focused) next = now.firstElementChild;
  }
  return next ?? (focused && [...after.querySelectorAll("button:enabled, a")].find((one) => isSameControl(one, focused)));
}

/** Whether a control that was drawn again is the one that was there; a decision may be named otherwise now. */
function isSameControl(one, other) {
  const { decision } = other.dataset;
  return decision ? one.dataset.decision === decision : one.textContent === other.textContent && one.className === other.className;
}

function timeOf(ts) {
  const given = new Date(parseTime(ts));
  const at = Number.isNaN(given.getTime()) ? new Date() : given;
  const node = make("time", "", text.clock(at.getTime()));
  node.dateTime = at.toISOString();
  return node;
}

async function copy(button) {
  await copyText(button, button.dataset.copies);
  setTimeout(() => setText(button, "Copy"), 1_500);
}
