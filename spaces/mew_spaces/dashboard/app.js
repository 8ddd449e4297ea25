// The page: sign-in, the event feed, and the content of each pane. Owns the order of work in a frame.

import WORDS from "./words.json" with { type: "json" };
import { Board } from "./board.js";
import { Composer } from "./composer.js";
import { MEMBERSHIP } from "./actions.js";
import { COMMANDS } from "./commands.js";
import { Conversation } from "./conversation.js";
import { ConversationView } from "./conversation_view.js";
import { Detail } from "./detail.js";
import { byId, isPressed, make, makeOption, setText, setTextOrHide } from "./dom.js";
import { EarlierMessages } from "./earlier.js";
import { EventFeed } from "./events.js";
import { FigureHistory } from "./figures.js";
import { Overview } from "./overview.js";
import { ParticipantList } from "./participant_list.js";
import { maySend } from "./permissions.js";
import { Queue } from "./queue.js";
import { Requests } from "./requests.js";
import { gatewayUrl, isWhole, putInAddress, shownInAddress, store, stored, takeFragment } from "./session.js";
import { SeriesColours } from "./series.js";
import * as settings from "./settings.js";
import * as text from "./text.js";

const TICK_MS = 1_000;
const SOON_MS = 250;
const AGAIN_MS = 3_000;
const MAX_LOG = 60;
const MAX_CHANGES = 500; // of proposed calls
const CHANGES_PERMISSIONS = /^(capability\/|space\/|system\/presence)/;

/**
 * What the right pane and its forms use of the page.
 * @typedef {object} Services
 * @property {Requests} requests
 * @property {FigureHistory} figures
 * @property {string} me the user's participant
 * @property {string} space
 * @property {() => object} programs which can be started, as the gateway says
 * @property {(kind: string, to?: string) => boolean} maySend
 * @property {(id: string) => string[]} allowed the calls that a participant makes without asking
 * @property {(time: string) => number | undefined} age in milliseconds, by the gateway's clock
 * @property {() => number} now that clock
 * @property {(id: string) => object | undefined} runningTurn
 * @property {{seconds: number}} range of the charts; 0 is everything
 * @property {SeriesColours} colours
 * @property {() => object} totals of the space
 * @property {(id: string) => [number, string][]} log the newest events: time and words
 * @property {(id: string) => void} select
 * @property {object} [adding] the form to add a participant, once it was shown
 */

/** One signed-in session, until the user signs out or the token is refused. */
class SpaceView {
  constructor(session, onRefused) {
    this._session = session;
    this._onRefused = onRefused;
    this._board = new Board();
    this._conversation = new Conversation(session.participant);
    this._requests = new Requests(session);
    this._figures = new FigureHistory((path, query) => this._requests.read(path, query), session.space);
    this._dirty = new Map(); // changed participants, with their last drawn line
    this._logs = new Map();
    this._items = [];
    this._changes = new Map(); // of proposed calls, by their item
    this._deciding = new Set(); // proposals of which a decision is on its way
    this._opened = new Set(); // proposed calls that the user opened, in the queue or the conversation
    this._patterns = [];
    this._allowed = new Map(); // calls that participants make without approval
    this._programs = { running: false, participants: [], startable: [], models: [], types: [] };
    this._selected = undefined;
    this._hasChosen = false;
    this._connection = { state: "connecting" };
    this._wasLost = false;
    this._buildPanes();
    this._feed = new EventFeed(gatewayUrl(`spaces/${encodeURIComponent(session.space)}/events`), session.token, {
      onEvent: (name, value, id) => this._receive(name, value, id),
      onState: (state, detail = {}) => this._follow({ state, ...detail }),
    });
    this._events = new AbortController();
    this._listen(this._events.signal);
    this._timer = setInterval(() => this._tick(), TICK_MS);
  }

  run() {
    void this._feed.run();
    this._readPermissions();
  }

  close() {
    this._feed.stop();
    if (this._drawing !== undefined) cancelAnimationFrame(this._drawing);
    clearInterval(this._timer);
    clearTimeout(this._permissionTimer);
    this._events.abort();
    for (const part of [this._list, this._earlier, this._view, this._composer, this._queue, this._requests, this._detail]) part?.close();
    byId("detail").replaceChildren();
    byId("search").value = "";
    byId("filter").value = "all";
    for (const id of ["me-name", "glance", "shown-count", "only-name", "announcer"]) setText(byId(id), ""); // hidden, but readable
  }

  _buildPanes() {
    const { participant: me } = this._session;
    const send = (kind, to) => maySend(this._patterns, kind, to);
    this._services = {
      requests: this._requests,
      figures: this._figures,
      me,
      space: this._session.space,
      programs: () => this._programs,
      maySend: send,
      allowed: (id) => this._allowed.get(id) ?? [],
      age: (time) => this._board.elapsedMs(time, Date.now()),
      now: () => this._board.nowMs(Date.now()),
      runningTurn: (id) => this._conversation.runningTurn(id),
      range: { seconds: 0 },
      colours: new SeriesColours(),
      totals: () => this._board.totals,
      log: (id) => this._logs.get(id) ?? [],
      select: (id) => this._choose(id),
    };
    this._list = new ParticipantList(byId("participants"), {
      onSelect: (id) => this._select(id),
      onOpen: () => showPane("detail"),
      age: this._services.age,
    });
    this._view = new ConversationView({ list: byId("messages"), empty: byId("no-messages"), newest: byId("newest") }, this._conversation, {
      me,
      mayDecide: (entry) => send("mcp/request", entry.to[0]) || send("mcp/reject", entry.from),
      mayApprove: (entry) => this._approvalOf(entry) !== undefined,
      onDecide: (entry, decision) => void this._decide(entry, decision),
      onSelect: (id) => this._choose(id),
      receiptOf: (entry, id) => this._requests.receiptOf(entry, id),
      opened: this._opened,
      onOpen: () => this._queue.redraw(),
      changesOf: (entry) => this._changesOf(entry),
    });
    this._earlier = new EarlierMessages(byId("messages"), {
      read: (query) => this._requests.read(`participants/${encodeURIComponent(me)}/messages`, { space: this._session.space, ...query }),
      add: (envelopes) => {
        const visible = this._view.prepend(this._conversation.prepend(envelopes), Date.now());
        void this._endMissed();
        this._showSoon();
        return visible;
      },
      takeBeginning: () => this._conversation.takeBeginning(),
    });
    this._composer = new Composer({
      context: () => ({ known: this._others(), patterns: this._patterns }),
      send: (line, onAccepted) => this._say(line, onAccepted),
    });
    this._queue = new Queue({
      send: (envelope) => this._requests.send(envelope),
      maySend: send,
      select: (id) => this._choose(id),
      age: this._services.age,
      opened: this._opened,
      onOpen: () => {
        this._view.redrawProposals();
        this._showSoon();
      },
      mayRestart: (id) => this._programs.participants.includes(id) && send("program/restart", id),
      restart: (id) => this._requests.restartProgram(id),
    });
  }

  _listen(signal) {
    byId("retry").addEventListener("click", () => this._feed.retryNow(), { signal });
    window.addEventListener("popstate", () => this._followAddress(), { signal });
    window.addEventListener("online", () => this._feed.retryNow(), { signal });
    byId("search").addEventListener("input", () => this._order(), { signal });
    byId("filter").addEventListener("change", () => this._order(), { signal });
    byId("group").addEventListener("change", () => (store({ by: byId("group").value }, "mew.group", "localStorage"), this._order()), { signal });
    byId("only").addEventListener("change", () => this._showOnly(), { signal });
    byId("overview").addEventListener("click", () => this._choose(undefined), { signal });
    document.addEventListener("keydown", (event) => this._key(event), { signal });
  }

  // Events

  _receive(name, value, id) {
    const nowMs = Date.now();
    this._earlier.begin(id);
    if (name === "view") this._applyView(value, nowMs);
    else if (name === "reset") {
      this._conversation.note(new Date().toISOString(), "Some events were missed while disconnected and are no longer available.");
      this._conversation.missedFrames();
      void this._endMissed();
    } else if (name === "attention") this._needs(value.items ?? []);
    else if (name === "frame") this._conversation.frame(value.stream_id, value.data);
    else if (name === "said") this._said = value; // of the next envelope
    else if (name === "envelope") this._receiveEnvelope(value, id);
    this._showSoon();
  }

  _applyView(value, nowMs) {
    const isFirst = this._board.space === undefined;
    for (const [line, before] of this._board.apply(value, nowMs)) this._changed(line, before, isFirst);
    setText(byId("space-name"), this._board.name ?? this._board.space);
    this._showTitle();
    if (value.is_whole || value.removed?.length) this._hasNewOrder = true;
    if (value.is_whole) this._conversation.loseTurns((id) => !this._board.lines.get(id)?.connected);
    if (isFirst) void this._endMissed();
  }

  _changed(line, before, isFirst) {
    const { id, compaction, says } = line;
    if (!this._dirty.has(id)) this._dirty.set(id, before);
    if (!says && !line.has_context) return;
    if (line.received_at !== before?.received_at || !before) this._figures.add(line);
    if (isFirst || !before) return;
    if (says !== before.says) this._addLog(id, this._board.nowMs(Date.now()), says);
    if (!compaction || compaction.at === before.compaction?.at) return;
    if (compaction.trigger === "requested" && this._conversation.hasRequest(id, "participant/compact")) return; // the answer reports it
    this._conversation.note(compaction.at, `${id} compacted: ${compaction.line}`, [id]);
  }

  _receiveEnvelope(envelope, position) {
    const isPast = this._board.space === undefined; // the envelopes before the board
    envelope.said = this._said;
    this._said = undefined;
    this._conversation.receive(envelope, position);
    if (isPast) return;
    this._requests.receive(envelope);
    if (CHANGES_PERMISSIONS.test(envelope.kind)) this._readPermissionsSoon();
  }

  _addLog(id, ms, words) {
    if (!words) return;
    const lines = this._logs.get(id) ?? [];
    this._logs.set(id, [...lines.slice(-MAX_LOG), [ms, words]]);
  }

  _follow(connection) {
    this._connection = connection;
    if (connection.state === "refused") return this._onRefused(connection.message, this._board.space !== undefined);
    if (connection.state === "waiting" && !this._wasLost) {
      this._wasLost = true;
      this._conversation.missedFrames();
      this._lostMs = Date.now();
    } else if (connection.state === "live" && this._wasLost) {
      this._wasLost = false;
      const seconds = text.span(Date.now() - this._lostMs);
      this._conversation.note(new Date().toISOString(), `Reconnected after ${seconds}. Missed messages are shown above or still arrive.`);
      this._readPermissionsSoon();
    }
    showConnection(connection);
    this._showSoon();
  }

  // What the user may send, and the items that need the user

  _readPermissionsSoon(ms = SOON_MS) {
    if (!this._events.signal.aborted) this._permissionTimer ??= setTimeout(() => this._readPermissions(), ms);
  }

  async _readPermissions() {
    this._permissionTimer = undefined;
    try {
      const answer = await this._requests.read("participants", { space: this._session.space });
      this._allowed = new Map(answer.participants.map((one) => [one.id, one.allowed ?? []]));
      this._patterns = answer.participants.find((one) => one.id === this._session.participant)?.capabilities ?? [];
      this._programs = await this._requests.read(`spaces/${encodeURIComponent(this._session.space)}/programs`);
      if (this._events.signal.aborted) return;
      this._composer.offer(this._others());
      this._view.redrawProposals();
      this._queue.redraw();
      this._hasNewOrder = true;
      this._showSoon();
    } catch {
      this._readPermissionsSoon(AGAIN_MS); // the feed reports a lost connection
    }
  }

  /** End the proposals that are not open any more, after envelopes that may have decided about them were missed or came first. */
  async _endMissed() {
    const shown = this._conversation.openProposals();
    if (!shown.length) return;
    try {
      const answer = await this._requests.read(`spaces/${encodeURIComponent(this._session.space)}/proposals`);
      const open = new Set(answer.proposals.map((one) => one.id));
      for (const one of shown) if (!open.has(one.id)) this._conversation.endMissed(one);
      this._showSoon();
    } catch {
      // They cannot be approved, because the gateway does not offer it.
    }
  }

  /** What a proposed call would change; of one that was decided before the page opened, the gateway is asked once. */
  _changesOf({ from, id, payload, state }) {
    const key = `approval:${from}:${id}`;
    const args = payload?.params?.arguments;
    if (!this._changes.has(key) && state !== "open" && args && Object.keys(args).length > 1) {
      this._changes.set(key, undefined);
      void this._askForChanges(key, id, args);
    }
    return this._changes.get(key);
  }

  async _askForChanges(key, id, args) {
    try {
      const { changes } = await this._requests.post(`spaces/${encodeURIComponent(this._session.space)}/changes`, { arguments: args });
      if (!Object.keys(changes).length) return;
      this._changes.set(key, changes);
      this._view.redrawProposals(id);
      this._showSoon();
    } catch {
      // Then the arguments are shown unchanged.
    }
  }

  _needs(items) {
    const before = new Set(this._items.map((item) => item.id));
    this._items = items;
    for (const item of items.flatMap((one) => (one.items?.length ? one.items : [one]))) if (item.changes) this._changes.set(item.id, item.changes);
    while (this._changes.size > MAX_CHANGES) this._changes.delete(this._changes.keys().next().value);
    this._view.redrawProposals();
    this._queue.show(items);
    const news = items.filter((item) => item.level !== "notice" && !before.has(item.id));
    this._showTitle();
    if (!news.length) return;
    announce(news.length === 1 ? news[0].reason : settings.inOne(news));
    settings.notify(news);
  }

  /** The tab's title counts what needs the user. */
  _showTitle() {
    const urgent = this._items.filter((item) => item.level !== "notice").length;
    document.title = `${urgent ? `(${urgent}) ` : ""}${this._board.name ?? this._board.space} · mew`;
  }

  // Actions of the user

  _others() {
    return [...this._board.lines.keys()].filter((id) => id !== this._session.participant).sort();
  }

  _select(id) {
    if (this._selected === id && this._hasChosen) return;
    this._selected = id;
    this._hasChosen = true;
    putInAddress(id);
    this._composer.choose(id === this._session.participant ? undefined : id);
    this._showDetail();
    this._order();
    this._showOnly();
  }

  /** Show the participant that the address names, after Back or a changed address. */
  _followAddress() {
    const id = shownInAddress();
    this._choose(id !== undefined && this._board.lines.has(id) ? id : undefined);
  }

  /** Select a participant that was named elsewhere, and bring it into view. */
  _choose(id) {
    this._select(id);
    if (id !== undefined) this._list.reveal(id);
    showPane("detail");
  }

  _showDetail() {
    this._detail?.close();
    const line = this._board.lines.get(this._selected);
    this._detail = line ? new Detail(byId("detail"), line, this._services) : new Overview(byId("detail"), this._services);
    byId("overview").setAttribute("aria-pressed", String(!line));
    byId("detail").scrollTop = 0;
  }

  _showOnly() {
    const id = this._board.lines.has(this._selected) ? this._selected : undefined;
    byId("only-label").hidden = id === undefined;
    setText(byId("only-name"), id ?? "");
    this._view.only(id !== undefined && byId("only").checked ? id : undefined);
  }

  async _say(line, onAccepted) {
    if (this._connection.state === "waiting") throw new Error("Offline: your message stays here. Send it when the connection is back.");
    const { id, command, kind, payload, to } = line;
    if (command && COMMANDS[command].isDecision) {
      onAccepted();
      return this._queue.goTo(command, line.about) ? undefined : `Nothing${line.about ? ` of ${line.about}` : ""} waits for approval.`;
    }
    const envelope = { kind, payload, ...(to.length ? { to } : {}) };
    if (!command) {
      await this._requests.send({ ...envelope, id });
      onAccepted();
      this._view.toEnd();
      return undefined;
    }
    if (MEMBERSHIP.has(kind)) {
      const receipt = await this._requests.send(envelope);
      onAccepted();
      return receipt.text;
    }
    if (COMMANDS[command].needs_turn) {
      const turn = this._conversation.runningTurn(to[0]);
      if (!turn) throw new Error(`${to[0]} has no running turn.`);
      envelope.context = turn.id;
    }
    const isAnswer = answerTo(command);
    if (!isAnswer) {
      await this._requests.send(envelope);
      onAccepted();
      return "Accepted by the gateway.";
    }
    const answered = await this._requests.ask(envelope, isAnswer, { onAccepted });
    const renamed = line.was === command ? "" : `/${line.was} is now called /${command}. `;
    return `${renamed}${to[0]}: ${answerOf(command, answered)}`;
  }

  async _decide(entry, decision) {
    if (this._deciding.has(entry.id)) return; // a second click
    this._deciding.add(entry.id);
    const rejection = { kind: "mcp/reject", to: [entry.from], payload: { reason: "disagree" }, correlation_id: [entry.id] };
    try {
      await this._requests.send(decision === "approve" ? this._approvalOf(entry) : rejection);
    } catch (error) {
      this._composer.say(error.message, true);
    } finally {
      this._deciding.delete(entry.id);
    }
  }

  /** The gateway's approval of a proposal, with its digest; undefined unless it approves what the entry shows. */
  _approvalOf(entry) {
    const items = this._items.flatMap((item) => (item.items?.length ? item.items : [item]));
    const item = items.find((one) => one.id === `approval:${entry.from}:${entry.id}`);
    const approval = item?.actions?.find((action) => action.envelope?.kind === "mcp/request")?.envelope;
    const call = ({ to, payload }) => JSON.stringify([to ?? [], payload?.method, payload?.params]);
    return approval && call(approval) === call(entry) ? approval : undefined;
  }

  _key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isTyping = event.target.matches?.("input, textarea, select");
    if (event.key === "Escape" && !isTyping && !byId("help").open && this._selected !== undefined) return this._choose(undefined);
    if (event.key === "Escape" && event.target === byId("composer-text")) return byId("participants").focus();
    if (isTyping) return;
    const keys = {
      "?": () => byId("help").showModal(),
      "/": () => byId("search").focus(),
      m: () => (showPane("conversation"), this._composer.focus()),
      p: () => (showPane("participants"), byId("participants").focus()),
      d: () => (showPane("detail"), byId("detail").focus()),
      q: () => this._queue.focus(),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  }

  // Drawing

  _tick() {
    if (isPressed()) return;
    showConnection(this._connection);
    this._feed.endIfSilent();
    if (this._board.space === undefined) return;
    this._queue.tick();
    lockOffline(); // also what was drawn since
    if (this._hasNewOrder) this._order();
    this._list.tick();
    if (this._detail instanceof Detail) this._detail.tick();
    else this._showOverview();
  }

  /** Draw once for all events that arrive before the next frame. */
  _showSoon() {
    if (this._events.signal.aborted) return; // the answer came after the user signed out
    this._drawing ??= requestAnimationFrame(() => this._show());
  }

  _show() {
    this._drawing = undefined;
    if (isPressed()) return this._showSoon();
    if (this._board.space === undefined) return;
    let isNew = false;
    for (const [id, before] of this._dirty) {
      const line = this._board.lines.get(id);
      if (!line) continue;
      isNew ||= !before || before.has_context !== line.has_context;
      this._hasNewOrder ||= before?.order !== line.order;
      this._list.update(line);
      if (this._detail instanceof Detail && this._detail.id === id) this._detail.show(line);
    }
    this._dirty.clear();
    if (isNew) {
      this._order(); // others wait for the next tick, so that rows do not jump
      this._composer.offer(this._others());
    }
    if (!this._detail || (this._selected === undefined && !this._hasChosen)) this._selectFirst();
    this._view.draw(Date.now());
    this._earlier.show(this._conversation.entries.size > 0);
  }

  /** Without a choice of the user, a single agent is selected; else the whole space is shown. */
  _selectFirst() {
    const named = shownInAddress();
    if (named !== undefined && this._board.lines.has(named)) return this._select(named);
    const agents = [...this._board.lines.values()].filter((line) => line.has_context);
    const id = agents.length === 1 ? agents[0].id : undefined;
    if (this._detail && (id === this._selected || byId("detail").contains(document.activeElement))) return; // it is used
    this._selected = id;
    if (id !== undefined) this._composer.suggest(id);
    this._showDetail();
    this._order();
    this._showOnly();
  }

  _order() {
    this._hasNewOrder = false;
    if (this._selected !== undefined && !this._board.lines.has(this._selected)) return this._select(undefined);
    const lines = this._board.select(byId("filter").value, byId("search").value);
    this._list.show(this._board.grouped(lines, byId("group").value), this._selected, this._session.participant);
    const all = this._board.lines.size;
    const hidden = all - lines.length;
    setTextOrHide(byId("no-participants"), lines.length ? "" : hidden ? "Nothing matches the filter." : "No participants yet.");
    setText(byId("glance"), this._board.totals.text ?? "");
    setText(byId("shown-count"), hidden ? `${lines.length} of ${all}` : String(all));
    if (this._detail instanceof Overview) this._showOverview();
  }

  _showOverview() {
    this._detail?.show([...this._board.lines.values()]);
  }
}

/** Which envelope ends a command; without one the gateway's receipt does. */
const answerTo = (command) => (command === "call" ? (envelope) => envelope.kind === "mcp/response" : COMMANDS[command].isAnswer);

function answerOf(command, answer) {
  if (command !== "call") return text.answered(answer);
  const { error } = answer.payload ?? {};
  return error ? text.sentence(String(error.message)) : "answered; see the conversation.";
}

function announce(message) {
  setText(byId("announcer"), message);
}

function showConnection({ state, untilMs, behind }) {
  const labels = { connecting: "connecting …", live: "live", waiting: "connection lost" };
  if (behind) labels.live = `catching up, ${text.grouped(behind.done)} of ${text.grouped(behind.total)} events`;
  const seconds = untilMs === undefined ? 0 : Math.ceil((untilMs - Date.now()) / 1000);
  byId("connection").dataset.state = state;
  setText(byId("connection-text"), seconds > 0 ? `${labels[state]}, retrying in ${seconds} s` : labels[state]);
  byId("retry").hidden = state !== "waiting";
  const before = document.body.dataset.connection;
  if (before !== state && (state === "waiting" || (before === "waiting" && state === "live"))) {
    announce(state === "live" ? "Reconnected." : "Connection to the gateway lost. Figures may be outdated.");
  }
  if (state !== "connecting") showOffline(state);
}

/** Without the gateway nothing on the page is live, for anybody, and nothing can be sent. */
function showOffline(state) {
  if (document.body.dataset.connection === state) return;
  document.body.dataset.connection = state;
  const isOffline = state === "waiting";
  lockOffline();
  setTextOrHide(byId("offline"), isOffline ? `Offline since ${text.clock(Date.now())}. Everything below is as it was then.` : "");
}

/** Lock the buttons that act on the space while it cannot be reached. */
function lockOffline() {
  const isOffline = document.body.dataset.connection === "waiting";
  for (const node of document.querySelectorAll("#queue-items button, #detail button, #messages [data-decision]")) if (node.inert !== isOffline) node.inert = isOffline;
}

/** On a narrow screen one pane is in view. */
function showPane(name) {
  byId("space").dataset.pane = name;
  for (const button of byId("tabs").querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.pane === name));
}

let view;

/** Show a space, or the sign-in form if anything needed for that is missing. */
function open(session, refusal) {
  view?.close();
  view = undefined;
  const isOpen = isWhole(session) && !refusal;
  byId("sign-in").hidden = isOpen;
  byId("space").hidden = !isOpen;
  for (const id of ["connection", "leave", "me", "tabs"]) byId(id).hidden = !isOpen;
  byId("retry").hidden = true;
  delete document.body.dataset.connection;
  setTextOrHide(byId("sign-in-refusal"), refusal);
  if (!isOpen) return showSignIn(session);
  store(session);
  setText(byId("me-name"), session.participant);
  showPane("conversation");
  view = new SpaceView(session, (message, wasSignedIn) => {
    store(undefined);
    open({ ...session, token: "" }, `${wasSignedIn ? "You were signed out" : "Sign-in failed"}: ${text.sentence(message)}`);
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

byId("tabs").addEventListener("click", (event) => {
  const { pane } = event.target.closest("button")?.dataset ?? {};
  if (pane) showPane(pane);
});

byId("help-button").addEventListener("click", () => byId("help").showModal());
byId("group").append(...Object.entries(WORDS.groupings).map(makeOption));
byId("group").value = stored("mew.group", "localStorage")?.by ?? "none";
byId("filter").append(...Object.entries(WORDS.filters).map(makeOption));
byId("commands").append(...Object.entries(COMMANDS).map(([name, { words, help }]) => make("div", "", make("dt", "", make("code", "", `/${name} ${words}`.trim())), make("dd", "", help))));
settings.start();

window.addEventListener("hashchange", () => {
  const given = takeFragment();
  if (Object.keys(given).length) open(given);
});

// Credentials come from the link, otherwise from this tab. The two are never mixed: a link may name another participant.
const given = takeFragment();
open(Object.keys(given).length ? given : (stored() ?? {}));
