// The conversation as entries: chats, turns of agents with their reasoning and tool calls, proposals, and notes in the gateway's words.
// Pure: envelopes and stream frames in, changed entries out. No DOM here.

import WORDS from "./words.json" with { type: "json" };

const MAX_ENTRIES = 600;
const SAME_TIME_MS = 60_000; // presences in one line, which has the time of the first
const MAX_STREAM_CHARS = 200_000;
const MAX_TOOLS = 500; // of one turn; the newest stay
const LISTS = /\/list$|^initialize$|^ping$/;

const idsOf = (envelope) => [envelope.correlation_id ?? []].flat().map(String);
const names = (envelope) => [envelope.to ?? []].flat().map(String);
/** Whether a request asks proposed participants for the proposed call, or one of them passes it on, as the gateway decides it. */
function fulfils(envelope, payload, { to, payload: proposed }) {
  const called = ({ method, params }) => JSON.stringify([String(method), method === "tools/call" ? String(params?.name) : null]);
  const asked = names(envelope);
  return called(payload) === called(proposed) && (!to.length || to.includes(String(envelope.from)) || (asked.length > 0 && asked.every((one) => to.includes(one))));
}

/** The tool or the method of a request, and its arguments. */
const callIn = ({ method, params = {} }) => (method === "tools/call" ? { tool: String(params?.name), args: params?.arguments } : { tool: String(method ?? ""), args: params });

const text = (value) => (typeof value === "string" && value.trim() ? value : undefined);

export class Conversation {
  /** `me`: the signed-in participant. Its rejection ends a proposal here, although others may still approve it. */
  constructor(me) {
    this._me = me;
    this.entries = new Map();
    this._byId = new Map(); // envelope ids to entries
    this._ids = new Map(); // entries to those ids
    this._owners = new Map(); // of open streams: a frame names its turn itself, so only frames of the turn's agent count
    this._changed = new Set();
    this._seen = new Set();
    this._most = MAX_ENTRIES;
    this._hasDropped = false;
    this._notes = 0;
    this._position = undefined; // of the envelope that is applied
  }

  /** The ids of the entries that changed since the last call. */
  takeChanged() {
    const changed = this._changed;
    this._changed = new Set();
    return changed;
  }

  /** Where the entries begin in the gateway's log, if the oldest ones were dropped since the last call. */
  takeBeginning() {
    if (!this._hasDropped) return undefined;
    this._hasDropped = false;
    return [...this.entries.values()].find((one) => one.position !== undefined)?.position;
  }

  /** The running turn of a participant, if there is one. */
  runningTurn(participant) {
    return [...this.entries.values()].reverse().find((one) => one.type === "turn" && one.from === participant && one.state === "running");
  }

  /** Running turns of participants that are away are lost, unless their answer still arrives. */
  loseTurns(isAway) {
    for (const turn of this.entries.values()) if (turn.type === "turn" && turn.state === "running" && isAway(turn.from)) this._touch(turn, { state: "lost" });
  }

  /** Whether a request of this kind to a participant is among the entries. */
  hasRequest(participant, kind) {
    return [...this.entries.values()].some((one) => one.kind === kind && one.about.includes(participant));
  }

  /** Apply one envelope, with its position in the gateway's log. One that was applied before changes nothing. */
  receive(envelope, position) {
    this._position = position;
    if (envelope.kind === "participant/status" && !envelope.correlation_id?.length) return;
    if (envelope.id !== undefined) {
      if (this._seen.has(envelope.id)) return;
      this._seen.add(envelope.id);
      if (this._seen.size > 20_000) this._seen.delete(this._seen.values().next().value);
    }
    const payload = envelope.payload && typeof envelope.payload === "object" ? envelope.payload : {};
    const handler = HANDLERS[envelope.kind] ?? (envelope.said?.about && "_noted");
    if (handler) this[handler](envelope, payload);
  }

  _streamOpen(envelope, payload) {
    if (envelope.from === "gateway" && typeof payload.stream_id === "string") this._owners.set(payload.stream_id, payload.owner);
  }

  _streamClose(envelope, payload) {
    if (envelope.from === "gateway" || envelope.from === this._owners.get(payload.stream_id)) this._owners.delete(payload.stream_id);
  }

  /** Apply the data of a stream's frame: JSON {context, type, value}. Anything else is ignored. */
  frame(streamId, data) {
    let frame;
    try {
      frame = JSON.parse(data);
    } catch {
      return;
    }
    if (typeof frame?.context !== "string" || typeof frame.value !== "string") return;
    const turn = this._byId.get(frame.context);
    if (turn?.type !== "turn" || this._owners.get(streamId) !== turn.from) return;
    goOn(turn);
    if (turn.state !== "running" || turn.hasHole) return;
    if (frame.type === "token" && turn.text.length < MAX_STREAM_CHARS) turn.text += frame.value;
    else if (frame.type === "thinking" && turn.thinking.length < MAX_STREAM_CHARS) turn.thinking += frame.value;
    else return;
    this._changed.add(turn.id);
  }

  /** Frames may have been missed: running turns show no streamed text until their answer arrives. */
  missedFrames() {
    for (const turn of this.entries.values()) {
      if (turn.type !== "turn" || turn.state !== "running") continue;
      Object.assign(turn, { hasHole: true, text: "" });
      this._changed.add(turn.id);
    }
  }

  /** Apply envelopes that precede all others; returns the ids of the entries they add, oldest first. */
  prepend(envelopes) {
    const older = new Conversation(this._me);
    older._most = Infinity;
    for (const envelope of envelopes) if (!this._byId.has(envelope.id)) older.receive(envelope, envelope.position);
    for (const turn of older.entries.values()) {
      if (turn.type !== "turn" || !["running", "lost"].includes(turn.state)) continue;
      // Its answer arrived before its start, as a separate chat.
      const answer = [...this.entries.values()].find((one) => one.type === "chat" && one.from === turn.from && turn.question !== undefined && one.question === turn.question);
      Object.assign(turn, { state: "done", endedTs: turn.ts }, answer ? { answer: answer.text, to: answer.to, endedTs: answer.ts } : {});
      if (!answer) continue;
      this._remove(answer);
      older._byId.set(answer.id, turn);
    }
    this.entries = new Map([...older.entries, ...this.entries]);
    for (const [id, entry] of older._byId) if (!this._byId.has(id)) this._index(id, entry);
    for (const id of older._seen) this._seen.add(id);
    this._most += older.entries.size;
    return [...older.entries.keys()];
  }

  /** Add a note that is not an envelope. */
  note(ts, words, about = []) {
    this._position = undefined;
    this._add({ id: `note-${(this._notes += 1)}`, type: "note", ts, words, about });
  }

  _add(entry, ...envelopeIds) {
    entry.position = this._position;
    this.entries.set(entry.id, entry);
    for (const id of envelopeIds) if (id !== undefined) this._index(id, entry);
    this._changed.add(entry.id);
    if (this.entries.size > this._most) {
      this._remove(this.entries.values().next().value);
      this._hasDropped = true;
    }
    return entry;
  }

  _remove(entry) {
    this.entries.delete(entry.id);
    this._changed.add(entry.id);
    for (const id of this._ids.get(entry) ?? []) if (this._byId.get(id) === entry) this._byId.delete(id);
    this._ids.delete(entry);
  }

  _index(id, entry) {
    this._byId.set(id, entry);
    if (!this._ids.has(entry)) this._ids.set(entry, []);
    this._ids.get(entry).push(id);
  }

  _touch(entry, change) {
    Object.assign(entry, change);
    if (this.entries.has(entry.id)) this._changed.add(entry.id);
  }

  /** The entries that an envelope refers to. */
  _about(envelope) {
    return [...new Set(idsOf(envelope).map((id) => this._byId.get(id)))].filter(Boolean);
  }

  _found(ids, type) {
    return ids.map((id) => this._byId.get(id)).find((entry) => entry && (!type || entry.type === type));
  }

  // Chats and turns

  _chat(envelope, payload) {
    if (typeof payload.text !== "string") return;
    const about = idsOf(envelope);
    const asked = this._found(about, "chat");
    if (asked) this._touch(asked, { acknowledged: asked.acknowledged.filter((one) => one.by !== envelope.from || one.isRead) }); // the agent has answered it
    const turn = [...this.entries.values()].reverse().find((one) => one.type === "turn" && one.from === envelope.from && about.includes(one.question));
    const chat = { id: envelope.id, type: "chat", ts: envelope.ts, from: String(envelope.from), to: names(envelope), text: payload.text, isUrgent: payload.urgent === true };
    if (turn && turn.answer === undefined && turn.state !== "cancelled") {
      this._index(envelope.id, turn);
      this._touch(turn, { answer: payload.text, to: chat.to, state: "done", endedTs: envelope.ts });
      return;
    }
    this._add({ ...chat, question: about[0], acknowledged: [] }, envelope.id);
  }

  _acknowledge(envelope, payload) {
    const chat = this._found(idsOf(envelope), "chat");
    const hasReceipt = Boolean(payload.receipt);
    const mark = { hasReceipt, by: String(envelope.from), isRead: Boolean(payload.receipt?.call), words: envelope.said?.text ?? "" };
    if (chat) this._touch(chat, { acknowledged: [...chat.acknowledged.slice(-9), mark] });
  }

  _chatCancel(envelope) {
    const chat = this._found(idsOf(envelope), "chat");
    if (chat?.from === String(envelope.from)) this._touch(chat, { isCancelled: true });
  }

  _start(envelope, payload) {
    const question = idsOf(envelope)[0];
    const turn = { type: "turn", id: envelope.id, ts: envelope.ts, from: String(envelope.from), to: names(envelope), question, state: "running", text: "", thinking: "", thoughts: [], tools: [], earlierTools: 0 };
    turn.subject = text(payload.message) ?? text(payload.input);
    this._add(turn, envelope.id);
  }

  _turnOf(envelope) {
    const found = this._byId.get(envelope.context) ?? this._found(idsOf(envelope), "turn");
    return found?.type === "turn" && found.from === String(envelope.from) ? found : undefined;
  }

  _thought(envelope, payload) {
    const turn = this._turnOf(envelope);
    const words = text(payload.reasoning) ?? text(payload.message);
    if (!turn) {
      if (words) this._add({ id: envelope.id, type: "thought", ts: envelope.ts, from: String(envelope.from), to: [], text: words });
      return;
    }
    goOn(turn);
    if (payload.action === "respond") return;
    if (payload.action === "tool" && typeof payload.actionInput?.tool === "string") {
      const { tool, arguments: args } = payload.actionInput;
      addTool(turn, { tool, args, state: "called", from: turn.from });
      // Text before a call is part of the reasoning; the answer starts after the call.
      if (turn.text.trim()) addThought(turn, turn.text);
      this._touch(turn, { text: "" });
    } else if (words) {
      addThought(turn, words);
      this._touch(turn, {});
    }
  }

  _conclude(envelope, payload) {
    const turn = this._turnOf(envelope);
    if (!turn || !["running", "lost"].includes(turn.state)) return;
    if (payload.cancelled || payload.interrupted) this._touch(turn, { state: "cancelled", reason: text(payload.reason) ?? text(payload.message), endedTs: envelope.ts });
    else this._touch(turn, { state: "done", endedTs: envelope.ts });
  }

  // Tools and proposals

  _request(envelope, payload) {
    const method = String(payload.method ?? "");
    if (LISTS.test(method) || method.startsWith("notifications/")) return;
    const fulfilled = this._about(envelope).filter((one) => one.type === "proposal" && fulfils(envelope, payload, one));
    for (const proposal of fulfilled) {
      this._index(envelope.id, proposal);
      this._approve(proposal, envelope, names(envelope));
    }
    if (fulfilled.length) return;
    const { tool, args } = callIn(payload);
    const turn = this.runningTurn(String(envelope.from));
    const announced = turn?.tools.find((row) => row.request === undefined && (row.tool === tool || row.tool.endsWith(tool)));
    const row = { tool, args, state: "called", from: String(envelope.from), peer: names(envelope)[0], asked: names(envelope), request: envelope.id };
    if (announced) Object.assign(announced, row);
    else if (turn) addTool(turn, row);
    if (turn) {
      this._index(envelope.id, turn);
      this._touch(turn, {});
    } else this._add({ id: envelope.id, type: "tool", ts: envelope.ts, from: row.from, to: names(envelope), row }, envelope.id);
  }

  _approve(proposal, { from }, asked) {
    this._touch(proposal, { state: "approved", words: WORDS.proposals.approved.replace("{participant}", from), asked, row: { ...proposal.row, state: "called" } });
  }

  _response(envelope, payload) {
    for (const entry of this._about(envelope)) this._answered(entry, envelope, payload);
  }

  _answered(entry, envelope, payload) {
    // Ignore answers of others: the page shows the result as that of the participant that was asked.
    const from = String(envelope.from);
    if (entry.type === "proposal" && !(entry.asked ?? entry.to).includes(from)) return;
    if (entry.type === "tool" && entry.to.length && !entry.to.includes(from)) return;
    if (entry.type === "proposal" && entry.state === "open") this._approve(entry, envelope, entry.to);
    const outcome = payload.error ? { state: "failed", result: payload.error } : { state: payload.result?.isError ? "failed" : "answered", result: payload.result };
    if (entry.row) this._touch(entry, { row: { ...entry.row, ...outcome } });
    const row = entry.tools?.find((one) => idsOf(envelope).includes(one.request) && (!one.asked.length || one.asked.includes(from)));
    if (row) {
      Object.assign(row, outcome);
      this._touch(entry, {});
    }
  }

  _proposal(envelope, payload) {
    const row = { ...callIn(payload), from: String(envelope.from), peer: names(envelope)[0], state: "proposed" };
    this._add({ id: envelope.id, type: "proposal", ts: envelope.ts, from: row.from, to: names(envelope), row, payload, state: "open", words: WORDS.proposals.open }, envelope.id);
  }

  _endProposal(envelope) {
    const [isRejection, by, said] = [envelope.kind === "mcp/reject", envelope.from, envelope.said?.text ?? ""];
    for (const proposal of this._about(envelope)) {
      if (proposal.type !== "proposal" || proposal.state !== "open") continue;
      const isEnd = !isRejection || [this._me, proposal.from].includes(by) || String(proposal.to) === proposal.from;
      const words = [proposal.rejection, said].filter(Boolean).join("; ");
      if (isEnd) this._touch(proposal, { state: isRejection ? "rejected" : "withdrawn", words });
      else this._touch(proposal, { words: `${WORDS.proposals.open}; ${said}`, rejection: said }); // others may still approve it
    }
  }

  /** The proposals without a known decision. */
  openProposals() {
    return [...this.entries.values()].filter((one) => one.type === "proposal" && one.state === "open");
  }

  /** End a proposal of which the decision was missed. */
  endMissed(proposal) {
    if (proposal.state === "open") this._touch(proposal, { state: "ended", words: WORDS.proposals.ended });
  }

  // Notes: requests to participants, and changes of the membership

  _noted({ id, ts, kind, said }) {
    this._add({ id, type: "note", ts, kind, words: said.text, about: said.about }, id);
  }

  _answer({ kind, from, said, ...envelope }) {
    const note = this._found(idsOf(envelope), "note");
    if (!note || !said || said.stage === "calm" || (kind === "participant/status" && note.answer)) return;
    this._touch(note, { answer: { from, said } });
  }

  _presence({ id, ts, said }, payload) {
    if (payload.event === "leave") this.loseTurns((agent) => agent === payload.participant?.id);
    if (!said?.text) return;
    const { text: verb, about } = said;
    const last = [...this.entries.values()].at(-1);
    if (last?.verb === verb && Date.parse(ts) - Date.parse(last.ts) < SAME_TIME_MS) return this._touch(last, { about: [...new Set([...last.about, ...about])] });
    this._add({ id, type: "presence", ts, verb, about });
  }
}

const HANDLERS = {
  chat: "_chat",
  "chat/acknowledge": "_acknowledge",
  "chat/cancel": "_chatCancel",
  "reasoning/start": "_start",
  "reasoning/thought": "_thought",
  "reasoning/conclusion": "_conclude",
  "stream/open": "_streamOpen",
  "stream/close": "_streamClose",
  "mcp/request": "_request",
  "mcp/response": "_response",
  "mcp/proposal": "_proposal",
  "mcp/reject": "_endProposal",
  "mcp/withdraw": "_endProposal",
  "participant/compact-done": "_answer",
  "participant/undo-done": "_answer",
  "participant/status": "_answer",
  "system/presence": "_presence",
};

/** A turn that was lost goes on: its program lives. */
function goOn(turn) {
  if (turn.state === "lost") turn.state = "running";
}

function addTool(turn, row) {
  turn.tools.push(row);
  if (turn.tools.length <= MAX_TOOLS) return;
  turn.tools.shift();
  turn.earlierTools += 1;
}

/** Add to the reasoning of a turn, of which the end is kept. */
function addThought(turn, words) {
  turn.thoughts.push(words.slice(-MAX_STREAM_CHARS));
  turn.thoughtChars = (turn.thoughtChars ?? 0) + turn.thoughts.at(-1).length + 1;
  while (turn.thoughtChars > MAX_STREAM_CHARS && turn.thoughts.length > 1) turn.thoughtChars -= turn.thoughts.shift().length + 1;
}

/** Whether an entry is about a participant. */
export function isAbout(entry, participant) {
  return entry.from === participant || Boolean(entry.to?.includes(participant)) || Boolean(entry.about?.includes?.(participant));
}
