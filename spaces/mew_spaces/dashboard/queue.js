// The queue at the top of the page: items that need the signed-in person. Owns the look of an item and the envelope of each action. The
// gateway chooses the items and their words; ages are counted here.

import { renderProposal } from "./arguments.js";
import WORDS from "./words.json" with { type: "json" };
import { byId, isPressed, make, makeText, setText } from "./dom.js";
import { span } from "./text.js";

const MAX_SHOWN = 5;
const SOON_MS = 50;
const SENDING = "Sending …";
const SETTLING_MS = 700; // an earlier click after a change of items was meant for the old item
const GONE = new Set(["program_ended", "disconnected"]); // a restart helps

export class Queue {
  /**
   * `actions`: send(envelope) resolves or rejects with a sentence; maySend(kind); select(id); age(time) in ms; opened is a
   * set of the calls that the user opened;
   * mayRestart(id) whether restart(id) can restart its program, which resolves with what came of it.
   */
  constructor(actions) {
    this._actions = actions;
    this._items = [];
    this._open = new Set(); // unfolded groups
    this._opened = actions.opened; // calls that are shown in full
    this._rejecting = undefined;
    this._confirming = undefined; // the item and action with a displayed explanation
    this._answers = new Map();
    this._isWhole = false;
    this._isFolded = matchMedia("(max-width: 699px)").matches; // on a phone the panes need the space
    this._drawn = "";
    this._places = []; // the item now or formerly at each place of the list
    this._movedAt = new Map(); // when another item took an item's place
    this._events = new AbortController();
    byId("queue-items").addEventListener("click", (event) => this._click(event), { signal: this._events.signal });
    byId("queue-fold").addEventListener("click", () => this._fold(!this._isFolded), { signal: this._events.signal });
    this._fold(this._isFolded);
    byId("queue-items").addEventListener("submit", (event) => this._submit(event), { signal: this._events.signal });
  }

  close() {
    this._events.abort();
    clearTimeout(this._soon);
    byId("queue-items").replaceChildren();
    byId("queue").hidden = true;
  }

  /** Show the items of the gateway, in its order. */
  show(items) {
    const isApproval = (item) => item.kind === "approval";
    this._items = [...items.filter(isApproval), ...items.filter((item) => !isApproval(item))];
    if (items.some(isApproval) && !this._hadApproval) this._fold(false); // show items that wait for a decision
    this._hadApproval = items.some(isApproval);
    const ids = new Set(flat(items).map((item) => item.id));
    for (const id of this._answers.keys()) if (!ids.has(id)) this._answers.delete(id);
    this._draw();
  }

  /** Draw again after the user's permissions changed. */
  redraw() {
    this._drawn = "";
    this._draw();
  }

  /** Go to the button that decides about the first proposal (of a participant, if given); false if there is none. */
  goTo(decision, participant) {
    const item = flat(this._items).find((one) => one.kind === "approval" && (participant === undefined || one.participant === participant));
    if (!item) return false;
    const group = this._items.find((one) => one.items?.includes(item));
    if (group) this._open.add(group.id);
    this._isWhole = true;
    if (decision === "reject") this._rejecting = item.id;
    this._fold(false);
    this._draw();
    const node = [...byId("queue-items").children].find((one) => one.dataset.item === item.id);
    // First the parts that must be opened before an approval.
    (decision === "reject" ? node.querySelector("input") : (node.querySelector("[data-approves]:enabled") ?? node.querySelector("button"))).focus();
    return true;
  }

  /** Go to the first button, also of a folded queue. */
  focus() {
    if (this._items.length) this._fold(false);
    byId("queue-items").querySelector("button:enabled")?.focus();
  }

  _fold(isFolded) {
    this._isFolded = isFolded;
    byId("queue").dataset.folded = String(isFolded);
    byId("queue-fold").setAttribute("aria-expanded", String(!isFolded));
  }

  /** Count the ages on. */
  tick() {
    for (const node of byId("queue-items").querySelectorAll("[data-since]")) setText(node, this._age(node.dataset.since));
  }

  _age(since) {
    const ms = this._actions.age(since);
    return ms === undefined ? "" : span(ms);
  }

  _draw() {
    if (this._events.signal.aborted) return; // another participant may have signed in
    const key = JSON.stringify([this._items, [...this._open], this._rejecting, this._confirming, [...this._answers], this._isWhole, this._opened.size]);
    if (key === this._drawn) return;
    clearTimeout(this._soon);
    if (isPressed()) return void (this._soon = setTimeout(() => this._draw(), SOON_MS));
    this._drawn = key;
    const list = byId("queue-items");
    const focused = document.activeElement?.closest?.("#queue-items") ? document.activeElement.dataset.key : undefined;
    const typed = list.querySelector("input")?.value;
    const shown = this._isWhole ? this._items : this._items.slice(0, MAX_SHOWN);
    list.replaceChildren(...shown.flatMap((item) => [this._item(item), ...(this._open.has(item.id) ? (item.items ?? []).map((one) => this._item(one, true)) : [])]));
    this._notePlaces([...list.children].map((node) => node.dataset.item));
    const more = this._items.length - shown.length;
    if (more > 0) list.append(make("li", "more", button(`Show ${more} more`, { action: "whole" })));
    byId("queue").hidden = this._items.length === 0;
    setText(byId("queue-count"), String(flat(this._items).length));
    byId("queue").dataset.level = this._items[0]?.level ?? "";
    const input = list.querySelector("input");
    if (input && typed !== undefined) input.value = typed;
    if (focused === undefined) return;
    const before = [...list.querySelectorAll("button:enabled, input, .item-call")].find((node) => node.dataset.key === focused);
    // After a decision by keyboard, the focus goes to the next item, not to the top of the page.
    const next = before ?? list.querySelector("button:enabled, input") ?? byId("composer-text");
    next.focus({ preventScroll: next.matches(".item-call") }); // the user is reading an opened call
  }

  /** Note which items take the place of others. */
  _notePlaces(ids) {
    const now = performance.now();
    this._movedAt = new Map([...this._movedAt].filter(([id]) => ids.includes(id)));
    for (let at = 0; at < Math.max(ids.length, this._places.length); at += 1) {
      const [id, before] = [ids[at], this._places[at]];
      if (id === undefined) before.emptyAt ??= now;
      else {
        const isTaken = before && before.id !== id && now - (before.emptyAt ?? now) < SETTLING_MS;
        if (isTaken) this._movedAt.set(id, now);
        this._places[at] = { id };
      }
    }
  }

  /** Whether a decision about an item may be meant for the one that was in its place. */
  _isSettling(item) {
    return performance.now() - (this._movedAt.get(item.id) ?? -Infinity) < SETTLING_MS;
  }

  _item(item, isInner = false) {
    const node = make("li", isInner ? "item inner" : "item");
    node.dataset.tone = item.level;
    node.dataset.item = item.id;
    const proposal = proposalOf(item);
    // Show the call itself: the gateway's sentence has only its beginning.
    const shown = proposal && renderProposal(`${item.participant} ${WORDS.proposals.open} of`, proposal, this._opened, { chars: 1_200, lines: 24 }, item.changes);
    const head = make("p", "item-head", make("span", "item-kind", WORDS.attention[item.kind]), ...(shown ? [] : [makeText("span", "item-reason", item.reason)]));
    if (item.since) {
      const age = make("span", "item-age", this._age(item.since));
      age.dataset.since = item.since;
      head.append(age);
    }
    const bar = this._buttons(item, proposal);
    if (!shown) node.append(head, bar);
    else {
      const call = make("div", "item-call", ...shown.nodes);
      if (item.rejected_by?.length) head.append(makeText("span", "item-reason", `${WORDS.proposals.rejected.replace("{participant}", item.rejected_by.join(", "))}; others may still approve it`));
      for (const mark of call.querySelectorAll("[data-whole]")) Object.assign(mark.dataset, { action: "open", call: shown.key, key: `${item.id} open` });
      Object.assign(call, { tabIndex: -1 }).dataset.key = `${item.id} call`;
      for (const one of bar.querySelectorAll("[data-approves]")) one.disabled = !shown.isShown; // only fully displayed calls can be approved
      bar.append(make("span", "soft", shown.note));
      node.append(head, call, bar); // the user reads the call before the buttons
      node.classList.add("item-proposal");
    }
    if (this._rejecting === item.id) node.append(rejection());
    if (this._confirming?.id === item.id) node.append(confirmation(item, this._confirming.index));
    const answer = this._answers.get(item.id);
    if (answer) node.append(makeText("p", "answer", answer));
    return node;
  }

  _buttons(item, proposal) {
    const bar = make("p", "buttons");
    (item.actions ?? []).forEach((action, index) => {
      if (!action.envelope) return;
      if (action.allowed === false) return;
      const isReject = action.envelope.kind === "mcp/reject";
      const isApproval = proposal !== undefined && !isReject;
      const what = isReject ? "reject" : action.confirm ? "confirm" : "send";
      bar.append(button(what === "send" ? action.label : `${action.label}…`, { action: what, index, ...(isApproval ? { approves: "" } : {}) }, index === 0));
    });
    if (item.items?.length) bar.append(button(this._open.has(item.id) ? "Fold" : `Show all ${item.items.length}`, { action: "unfold" }));
    if (item.participant) bar.append(button("Show", { action: "select" }));
    const restarts = this._restarts(item);
    if (restarts) bar.append(button("Restart program", { action: "restart" }, GONE.has(item.kind)));
    const commands = restarts ? [] : (item.actions ?? []).filter((action) => !action.envelope && action.command);
    // In one element, because the bar adds space between its elements.
    if (commands.length) bar.append(make("span", "soft", "in a terminal: ", ...commands.flatMap((action, index) => [index ? ", " : "", make("code", "", action.command)])));
    for (const node of bar.querySelectorAll("button")) node.dataset.key = `${item.id} ${node.dataset.action} ${node.dataset.index ?? ""}`;
    return bar;
  }

  /** Whether restarting the program may help, and can be done here. */
  _restarts(item) {
    const helps = (item.actions ?? []).some((action) => action.command?.startsWith("mew restart"));
    return helps && item.participant && this._actions.mayRestart(item.participant);
  }

  _find(node) {
    const id = node.closest("[data-item]")?.dataset.item;
    return flat(this._items, true).find((item) => item.id === id);
  }

  _click(event) {
    const pressed = event.target.closest("button");
    if (!pressed || pressed.type === "submit") return;
    const item = this._find(pressed);
    const { action, index } = pressed.dataset;
    if (action === "whole") this._isWhole = true;
    else if (action === "send" && this._isSettling(item)) this._answers.set(item.id, "Not sent: another item was here a moment ago. Press again.");
    else if (action === "open") {
      this._opened.add(pressed.dataset.call);
      this._actions.onOpen();
    }
    else if (action === "unfold") this._open.has(item.id) ? this._open.delete(item.id) : this._open.add(item.id);
    else if (action === "reject") this._rejecting = this._rejecting === item.id ? undefined : item.id;
    else if (action === "select") this._actions.select(item.participant);
    else if (action === "send") void this._send(item, item.actions[Number(index)].envelope);
    else if (action === "confirm") this._confirming = this._confirming?.id === item.id ? undefined : { id: item.id, index: Number(index) };
    else if (action === "keep") this._confirming = undefined;
    else if (action === "confirmed") void this._confirm(item, item.actions[Number(index)].envelope);
    else if (action === "restart") void this._restart(item);
    this._draw();
    // Continue reading at the opened part; the buttons for its decision come next.
    if (action === "open") this._callOf(item)?.focus();
    if (action === "reject") byId("queue-items").querySelector("input")?.focus();
  }

  _callOf(item) {
    const node = [...byId("queue-items").children].find((one) => one.dataset.item === item.id);
    return node?.querySelector(".item-call");
  }

  _submit(event) {
    event.preventDefault();
    const item = this._find(event.target);
    const reason = event.target.elements.reason.value.trim() || "disagree";
    const action = item.actions.find((one) => one.envelope?.kind === "mcp/reject");
    this._rejecting = undefined;
    void this._send(item, { ...action.envelope, payload: { ...action.envelope.payload, reason } });
  }

  /** Allow such calls from now on, and approve this one. */
  async _confirm(item, grant) {
    this._confirming = undefined;
    if (await this._send(item, grant)) await this._send(item, proposalOf(item));
  }

  async _restart(item) {
    this._answers.set(item.id, `Restarting the program of ${item.participant} …`);
    this._draw();
    this._answers.set(item.id, await this._actions.restart(item.participant).catch((error) => error.message));
    this._draw();
  }

  async _send(item, envelope) {
    if (!envelope || this._answers.get(item.id) === SENDING) return false; // a second click
    this._answers.set(item.id, SENDING);
    this._draw();
    try {
      await this._actions.send(envelope);
      this._answers.set(item.id, "Sent; waiting for the answer.");
      return true;
    } catch (error) {
      this._answers.set(item.id, error.message);
      return false;
    } finally {
      this._draw();
    }
  }
}

/** The envelope that makes the proposed call; undefined if the item is no proposal, or too large to be approved here. */
const proposalOf = (item) => (item.kind === "approval" ? item.actions?.find((action) => action.envelope?.kind === "mcp/request")?.envelope : undefined);

const flat = (items, withGroups = false) => items.flatMap((item) => (item.items?.length ? [...(withGroups ? [item] : []), ...item.items] : [item]));

function button(label, data, isPrimary = false) {
  const node = make("button", isPrimary ? "primary" : "quiet", label);
  Object.assign(node.dataset, data);
  return node;
}

/** What an action means, before it acts. */
function confirmation(item, index) {
  const { confirm, label } = item.actions[index];
  const buttons = [button(label, { action: "confirmed", index }, true), button("Back", { action: "keep" })];
  for (const node of buttons) node.dataset.key = `${item.id} ${node.dataset.action}`;
  return make("div", "confirm", makeText("p", "", confirm), make("p", "buttons", ...buttons));
}

function rejection() {
  const input = make("input", "");
  input.name = "reason";
  input.placeholder = "why, in a few words";
  input.setAttribute("aria-label", "Reason");
  input.dataset.key = "reason";
  const send = make("button", "primary", "Reject");
  send.type = "submit";
  return make("form", "reject", input, send);
}
