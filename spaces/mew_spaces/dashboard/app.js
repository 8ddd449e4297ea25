// The page as a whole: whose eyes it has, the feed it follows, and what goes where on the page.

import { Board, hasContext } from "./board.js";
import { Card } from "./card.js";
import { CompactRequests } from "./compact.js";
import { byId, make, makeText, say, sayOrHide } from "./dom.js";
import { EventFeed } from "./events.js";
import { gatewayUrl, isWhole, store, stored, takeFragment } from "./session.js";
import { Talk } from "./talk.js";
import * as words from "./words.js";

const TICK_MS = 1_000;
const MOST_FULL_CARDS = 9; // above that a card shows its drawings when it is opened

/** One look into a space, from opening it until its token is forgotten or refused. */
class View {
  constructor(session, onRefused) {
    this._session = session;
    this._onRefused = onRefused;
    this._board = new Board();
    this._cards = new Map();
    this._talk = new Talk(byId("talk"), byId("no-talk"));
    this._talk.clear();
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
      say(byId("space-name"), title);
      document.title = `${title} · mew`;
      this._show(); // what follows may belong to a card
    } else if (name === "reset") {
      this._talk.note(undefined, "Some of what happened while the connection was lost is not kept any more.");
    } else if (name === "envelope") {
      this._hear(value);
    }
    this._showSoon();
  }

  _hear(envelope) {
    const before = this._board.entries.get(envelope.from);
    const severity = before?.status ? words.severityOf(before.status) : "0";
    const change = this._board.receive(envelope, Date.now());
    this._requests.hear(envelope);
    if (change && hasContext(change.entry) && !this._cards.has(change.entry.id)) this._show();
    if (envelope.kind === "chat") this._chat(envelope);
    if (envelope.kind === "reasoning/thought") this._cards.get(envelope.from)?.story.thought(envelope);
    if (envelope.kind === "system/presence" && change) this._presence(envelope, change.entry);
    if (envelope.kind === "participant/status" && change) this._warn(change.entry, severity);
    if (change?.compacted) this._compacted(envelope.ts, change.entry);
  }

  _chat(envelope) {
    this._talk.chat(envelope);
    for (const id of new Set([envelope.from, ...[envelope.to ?? []].flat()])) this._cards.get(id)?.story.chat(envelope);
  }

  _presence(envelope, entry) {
    this._talk.presence(envelope.ts, entry.id, entry.connected ? "joined" : "left");
    if (!entry.connected) this._requests.left(entry.id);
  }

  _compacted(ts, entry) {
    const said = words.lastCompaction(entry.status.context, () => undefined).replace(/^Last compaction /, "");
    this._talk.note(ts, `${entry.id} compacted, ${said}`);
    const replaced = words.replaced(entry.status.context);
    this._cards.get(entry.id)?.story.note(ts, `compacted, ${said}${replaced && `: ${replaced}`}`);
  }

  /** Say aloud when somebody comes close to the edge. */
  _warn(entry, before) {
    const now = words.severityOf(entry.status);
    if (Number(now) >= 2 && !(Number(before) >= Number(now))) {
      announce(`${entry.id}: ${words.level(entry.status)}, ${words.amount(entry.status)} ${words.ofWindow(entry.status)}`);
    }
  }

  _requestChanged(id) {
    const { text } = this._requests.stateOf(id);
    announce(`${id}: ${text}`);
    this._show();
  }

  _compact(id, targetTokens) {
    const entry = this._board.entries.get(id);
    const size = entry?.status?.tokens === undefined ? undefined : words.amount(entry.status);
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

  /** Show once for all that arrives before the screen is next drawn. */
  _showSoon() {
    if (this._drawing === undefined) this._drawing = requestAnimationFrame(() => this._show());
  }

  _show() {
    this._drawing = undefined;
    const nowMs = Date.now();
    const entries = [...this._board.entries.values()];
    const withContext = entries.filter(hasContext);
    this._keepCards(withContext.map((entry) => entry.id));
    for (const entry of withContext) {
      const receivedMs = entry.receivedMs === undefined ? undefined : nowMs - entry.receivedMs;
      const elapsedMs = (wireTime) => this._board.elapsedMs(wireTime, nowMs);
      this._cards.get(entry.id).show(entry, this._requests.stateOf(entry.id), elapsedMs, receivedMs);
    }
    byId("cards").dataset.crowded = String(withContext.length > MOST_FULL_CARDS);
    byId("no-cards").hidden = withContext.length > 0 || this._board.space === undefined;
    say(byId("glance"), words.glance(withContext));
    showOthers(entries.filter((entry) => !hasContext(entry)), this._session.participant);
  }

  /** Have a card for each of these, in this order, without touching those that stay. */
  _keepCards(ids) {
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

function announce(text) {
  say(byId("announcer"), text);
}

function showConnection({ state, untilMs }) {
  const texts = { connecting: "connecting …", live: "live", waiting: "connection lost" };
  const seconds = untilMs === undefined ? 0 : Math.ceil((untilMs - Date.now()) / 1000);
  byId("connection").dataset.state = state;
  say(byId("connection-text"), seconds > 0 ? `${texts[state]}, next try in ${seconds} s` : texts[state]);
  byId("retry").hidden = state !== "waiting";
  const before = document.body.dataset.connection;
  if (before !== state && (state === "waiting" || (before === "waiting" && state === "live"))) {
    announce(state === "live" ? "Connected again." : "Connection to the gateway lost; the figures are old.");
  }
  if (state !== "connecting") document.body.dataset.connection = state;
}

function showOthers(entries, me) {
  const line = byId("others");
  const key = JSON.stringify(entries.map((entry) => [entry.id, entry.connected, words.trouble(entry)]));
  if (line.dataset.shown === key) return;
  line.dataset.shown = key;
  const named = (list) => list.flatMap((entry, index) => [index ? ", " : " ", name(entry.id, me), words.trouble(entry)]);
  const here = entries.filter((entry) => entry.connected);
  const away = entries.filter((entry) => !entry.connected && entry.id !== me); // the viewer looks on, that is enough
  line.replaceChildren(
    ...(here.length ? [make("span", "", "also here:", ...named(here))] : []),
    ...(away.length ? [make("span", "", "not connected:", ...named(away))] : []),
  );
  line.hidden = line.children.length === 0;
}

function name(id, me) {
  const node = makeText("bdi", "name", id);
  return id === me ? make("span", "", node, " (you)") : node;
}

let view;

/** Look into a space, or ask for what is missing to do so. */
function open(session, refusal) {
  view?.close();
  view = undefined;
  const isOpen = isWhole(session) && !refusal;
  byId("sign-in").hidden = isOpen;
  byId("space").hidden = !isOpen;
  for (const id of ["connection", "leave", "me"]) byId(id).hidden = !isOpen;
  byId("retry").hidden = true;
  delete document.body.dataset.connection;
  sayOrHide(byId("sign-in-refusal"), refusal);
  if (!isOpen) return askFor(session);
  store(session);
  say(byId("me-name"), session.participant);
  view = new View(session, (message) => {
    store(undefined);
    open({ ...session, token: "" }, `The gateway refused: ${words.sentence(message)}`);
  });
  return view.run();
}

function askFor(session) {
  say(byId("space-name"), "mew");
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

// A link says who looks; without one, what this tab kept does. The two are never mixed.
const given = takeFragment();
open(Object.keys(given).length ? given : stored());
