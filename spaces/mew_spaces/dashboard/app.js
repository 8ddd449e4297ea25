// The page: signing in, following the event feed, and updating cards and messages.

import { Board, hasContext } from "./board.js";
import { Card } from "./card.js";
import { CompactRequests } from "./compact.js";
import { byId, make, makeText, setText, setTextOrHide } from "./dom.js";
import { EventFeed } from "./events.js";
import { gatewayUrl, isWhole, store, stored, takeFragment } from "./session.js";
import { MessageList } from "./message_list.js";
import * as text from "./text.js";

const TICK_MS = 1_000;
const MAX_FULL_CARDS = 9; // with more, a card shows its charts only when it is open

/** One signed-in session, until the user signs out or the token is refused. */
class SpaceView {
  constructor(session, onRefused) {
    this._session = session;
    this._onRefused = onRefused;
    this._board = new Board();
    this._cards = new Map();
    this._messages = new MessageList(byId("messages"), byId("no-messages"));
    this._messages.clear();
    byId("cards").replaceChildren();
    this._requests = new CompactRequests(session, (id) => this._requestChanged(id));
    this._connection = { state: "connecting" };
    this._feed = new EventFeed(gatewayUrl(`spaces/${encodeURIComponent(session.space)}/events`), session.token, {
      onEvent: (name, value) => this._receive(name, value),
      onState: (state, detail = {}) => this._follow({ state, ...detail }),
    });
    this._retry = () => this._feed.retryNow();
    byId("retry").addEventListener("click", this._retry);
    window.addEventListener("online", this._retry);
    this._timer = setInterval(() => this._tick(), TICK_MS);
  }

  run() {
    void this._feed.run();
  }

  close() {
    this._feed.stop();
    if (this._drawing !== undefined) cancelAnimationFrame(this._drawing);
    clearInterval(this._timer);
    byId("retry").removeEventListener("click", this._retry);
    window.removeEventListener("online", this._retry);
  }

  _receive(name, value) {
    if (name === "board") {
      this._board.replace(value, Date.now());
      const title = this._board.name ?? this._board.space;
      setText(byId("space-name"), title);
      document.title = `${title} · mew`;
      this._show(); // the next event may belong to one of these cards
    } else if (name === "reset") {
      this._messages.note(undefined, "Some events were missed while disconnected and are no longer available.");
    } else if (name === "envelope") {
      this._receiveEnvelope(value);
    }
    this._showSoon();
  }

  _receiveEnvelope(envelope) {
    const before = this._board.entries.get(envelope.from);
    const severity = before?.status ? text.severityOf(before.status) : "0";
    const change = this._board.receive(envelope, Date.now());
    this._requests.receive(envelope);
    if (change && hasContext(change.entry) && !this._cards.has(change.entry.id)) this._show();
    if (envelope.kind === "chat") this._chat(envelope);
    if (envelope.kind === "reasoning/thought") this._cards.get(envelope.from)?.activity.thought(envelope);
    if (envelope.kind === "system/presence" && change) this._presence(envelope, change.entry);
    if (envelope.kind === "participant/status" && change) this._warn(change.entry, severity);
    if (change?.compacted) this._compacted(envelope.ts, change.entry);
  }

  _chat(envelope) {
    this._messages.chat(envelope);
    for (const id of new Set([envelope.from, ...[envelope.to ?? []].flat()])) this._cards.get(id)?.activity.chat(envelope);
  }

  _presence(envelope, entry) {
    this._messages.presence(envelope.ts, entry.id, entry.connected ? "joined" : "left");
    if (!entry.connected) this._requests.left(entry.id);
  }

  _compacted(ts, entry) {
    const freed = text.lastCompaction(entry.status.context, () => undefined).replace(/^Last compaction /, "");
    this._messages.note(ts, `${entry.id} compacted: ${freed}`);
    const replaced = text.replaced(entry.status.context);
    this._cards.get(entry.id)?.activity.note(ts, `compacted: ${freed}${replaced && `; ${replaced}`}`);
  }

  /** Announce to screen readers when an agent comes close to its limit. */
  _warn(entry, before) {
    const now = text.severityOf(entry.status);
    if (Number(now) >= 2 && !(Number(before) >= Number(now))) {
      announce(`${entry.id}: ${text.level(entry.status)}, ${text.amount(entry.status)} ${text.ofWindow(entry.status)}`);
    }
  }

  _requestChanged(id) {
    announce(`${id}: ${this._requests.stateOf(id).text}`);
    this._show();
  }

  _compact(id, targetTokens) {
    const entry = this._board.entries.get(id);
    const size = entry?.status?.tokens === undefined ? undefined : text.amount(entry.status);
    void this._requests.ask(id, targetTokens, size);
  }

  _follow(connection) {
    this._connection = connection;
    if (connection.state === "refused") this._onRefused(connection.message);
    else this._tick();
  }

  _tick() {
    showConnection(this._connection);
    this._requests.expire(Date.now());
    this._show();
  }

  /** Update the page once for all events that arrive before the next frame. */
  _showSoon() {
    if (this._drawing === undefined) this._drawing = requestAnimationFrame(() => this._show());
  }

  _show() {
    this._drawing = undefined;
    const nowMs = Date.now();
    const entries = [...this._board.entries.values()];
    const withContext = entries.filter(hasContext);
    this._updateCards(withContext.map((entry) => entry.id));
    for (const entry of withContext) {
      const receivedMs = entry.receivedMs === undefined ? undefined : nowMs - entry.receivedMs;
      const elapsedMs = (wireTime) => this._board.elapsedMs(wireTime, nowMs);
      this._cards.get(entry.id).show(entry, this._requests.stateOf(entry.id), elapsedMs, receivedMs);
    }
    byId("cards").dataset.crowded = String(withContext.length > MAX_FULL_CARDS);
    byId("no-cards").hidden = withContext.length > 0 || this._board.space === undefined;
    setText(byId("glance"), text.glance(withContext));
    showOthers(entries.filter((entry) => !hasContext(entry)), this._session.participant);
  }

  /** Add and remove cards so that each of these participants has one. */
  _updateCards(ids) {
    const list = byId("cards");
    for (const [id, card] of this._cards) {
      if (!ids.includes(id)) {
        card.node.remove();
        this._cards.delete(id);
      }
    }
    for (const id of ids) {
      if (this._cards.has(id)) continue;
      const card = new Card(id, (targetTokens) => this._compact(id, targetTokens));
      this._cards.set(id, card);
      list.append(card.node);
    }
  }
}

function announce(message) {
  setText(byId("announcer"), message);
}

function showConnection({ state, untilMs }) {
  const labels = { connecting: "connecting …", live: "live", waiting: "connection lost" };
  const seconds = untilMs === undefined ? 0 : Math.ceil((untilMs - Date.now()) / 1000);
  byId("connection").dataset.state = state;
  setText(byId("connection-text"), seconds > 0 ? `${labels[state]}, retrying in ${seconds} s` : labels[state]);
  byId("retry").hidden = state !== "waiting";
  const before = document.body.dataset.connection;
  if (before !== state && (state === "waiting" || (before === "waiting" && state === "live"))) {
    announce(state === "live" ? "Reconnected." : "Connection to the gateway lost. Figures may be outdated.");
  }
  if (state !== "connecting") document.body.dataset.connection = state;
}

function showOthers(entries, me) {
  const line = byId("others");
  const key = JSON.stringify(entries.map((entry) => [entry.id, entry.connected, text.problemOf(entry)]));
  if (line.dataset.shown === key) return;
  line.dataset.shown = key;
  const named = (list) => list.flatMap((entry, index) => [index ? ", " : " ", name(entry.id, me), text.problemOf(entry)]);
  const here = entries.filter((entry) => entry.connected);
  const away = entries.filter((entry) => !entry.connected && entry.id !== me); // the user of this page is listed as "you" or not at all
  line.replaceChildren(
    ...(here.length ? [make("span", "", "Connected:", ...named(here))] : []),
    ...(away.length ? [make("span", "", "Disconnected:", ...named(away))] : []),
  );
  line.hidden = line.children.length === 0;
}

function name(id, me) {
  const node = makeText("bdi", "name", id);
  return id === me ? make("span", "", node, " (you)") : node;
}

let view;

/** Show a space, or the sign-in form if anything needed for that is missing. */
function open(session, refusal) {
  view?.close();
  view = undefined;
  const isOpen = isWhole(session) && !refusal;
  byId("sign-in").hidden = isOpen;
  byId("space").hidden = !isOpen;
  for (const id of ["connection", "leave", "me"]) byId(id).hidden = !isOpen;
  byId("retry").hidden = true;
  delete document.body.dataset.connection;
  setTextOrHide(byId("sign-in-refusal"), refusal);
  if (!isOpen) return showSignIn(session);
  store(session);
  setText(byId("me-name"), session.participant);
  view = new SpaceView(session, (message) => {
    store(undefined);
    open({ ...session, token: "" }, `Sign-in failed: ${text.sentence(message)}`);
  });
  return view.run();
}

function showSignIn(session) {
  setText(byId("space-name"), "mew");
  document.title = "mew";
  const { elements } = byId("sign-in-form");
  for (const field of ["space", "participant", "token"]) elements[field].value = session[field] ?? "";
  const first = ["space", "participant", "token"].find((field) => !session[field]) ?? "token";
  elements[first].focus();
}

byId("sign-in-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = Object.fromEntries([...new FormData(event.target)].map(([key, value]) => [key, value.trim()]));
  open(given);
});

byId("leave").addEventListener("click", () => {
  store(undefined);
  open({});
});

window.addEventListener("hashchange", () => {
  const given = takeFragment();
  if (Object.keys(given).length) open(given);
});

// Credentials come from the link, else from this tab. The two are never mixed: a link may name another participant.
const given = takeFragment();
open(Object.keys(given).length ? given : stored());
