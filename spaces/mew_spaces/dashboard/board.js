// The board: the gateway's board, kept up to date by the envelopes that follow it. No DOM here.
// Applies statuses by the gateway's rules, so the figures match GET /spaces/<id>/context.

import { parseStatus } from "./status.js";

const BASES = new Set(["reported", "server_counted", "projected", "agent_reported", "provisional", "unknown"]);

/** Whether a value can be a count of tokens or messages. */
const isCount = (value) => Number.isSafeInteger(value) && value >= 0;

const isRecord = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

const COUNTS = [
  "prompt_tokens", "completion_tokens", "reasoning_tokens", "cached_tokens", "compact_at_tokens",
  "next_prompt_tokens", "turns_to_compaction", "stale_messages", "compactions", "spent_tokens", "budget_tokens",
];
const NUMBERS = ["tokens_per_turn", "drift_tokens"];
const TEXTS = ["level", "policy", "max_tokens_basis", "next_prompt_basis", "measured_at", "model"];

/** Read the known fields of a status payload. Undefined if it is not valid. */
export function readStatus(payload) {
  if (!isRecord(payload) || !isCount(payload.messages_in_context)) return undefined;
  const status = { messages_in_context: payload.messages_in_context };
  for (const [name, isValid] of [
    ["tokens", isCount],
    ["max_tokens", (value) => isCount(value) && value > 0],
    ["status", (value) => typeof value === "string"],
    ["latency_ms", Number.isSafeInteger],
    ["context", isRecord],
  ]) {
    const value = payload[name] ?? undefined;
    if (value === undefined) continue;
    if (!isValid(value)) return undefined;
    status[name] = value;
  }
  if (status.context) {
    status.context = readReport(status.context);
    if (!status.context) return undefined;
  }
  return status;
}

function readReport(context) {
  if (!BASES.has(context.basis)) return undefined;
  const reason = context.reason ?? undefined;
  if ((context.basis === "unknown") !== (reason !== undefined)) return undefined;
  const report = { basis: context.basis, reason, level: "unknown", severity: context.severity };
  const copy = (names, isValid) => {
    for (const name of names) if (isValid(context[name])) report[name] = context[name];
  };
  copy(COUNTS, isCount);
  copy(NUMBERS, Number.isFinite);
  copy(TEXTS, (value) => typeof value === "string");
  if (isCount(context.last_reported?.tokens)) report.last_reported = context.last_reported;
  if (typeof context.last_compaction?.at === "string") report.last_compaction = context.last_compaction;
  if (isCount(context.queued?.messages) && isCount(context.queued.tokens)) report.queued = context.queued;
  if (isRecord(context.spending)) report.spending = context.spending;
  const { progress } = context;
  if (typeof progress?.kind === "string" && isCount(progress.done) && isCount(progress.total) && progress.total > 0) report.progress = progress;
  if (typeof context.injection?.kind === "string") {
    const { kind, remaining } = context.injection;
    report.injection = { kind, remaining: isCount(remaining) ? remaining : undefined };
  }
  if (Array.isArray(context.waiting)) {
    report.waiting = context.waiting.filter((one) => typeof one?.kind === "string" && typeof one.what === "string");
  }
  if (Array.isArray(context.pins)) report.pins = context.pins.filter((one) => typeof one?.hash === "string");
  if (Array.isArray(context.sessions)) report.sessions = context.sessions.filter(isRecord);
  if (Array.isArray(context.suggestions)) {
    report.suggestions = context.suggestions.filter((one) => isCount(one?.tokens_saved) && typeof one.text === "string");
  }
  if (Array.isArray(context.breakdown)) {
    report.breakdown = context.breakdown.filter((part) => isCount(part?.tokens) && typeof part.part === "string");
  }
  return report;
}

/** Whether a status is complete. One sent to a single participant may hold only the fields it requested. */
function isWhole(payload) {
  const { context } = payload;
  if (parseStatus(payload.status).word === "refused") return false; // about one request
  if (!isRecord(context)) return "tokens" in payload && "max_tokens" in payload;
  if (!("basis" in context && "level" in context && "revision" in context)) return false;
  const hasFigure = "tokens" in payload || context.basis === "unknown";
  return hasFigure && ("max_tokens" in payload || !("max_tokens_basis" in context));
}

/** Parse a protocol time into milliseconds, NaN if it is invalid. Without a zone it is UTC. */
export const parseTime = (text) => Date.parse(/T[\d:.]+$/.test(text) ? `${text}Z` : text);

const hasAddressee = (to) => (Array.isArray(to) ? to.length > 0 : Boolean(to));

/** Whether a participant reports a context. */
export const hasContext = ({ status }) =>
  Boolean(status && (status.context || status.tokens !== undefined || status.max_tokens !== undefined));

export class Board {
  constructor() {
    this.space = undefined;
    this.name = undefined;
    this.entries = new Map();
    this._skewMs = 0;
  }

  /** Replace the entries by the gateway's board. */
  replace(data, nowMs) {
    const at = parseTime(data.at);
    this._skewMs = Number.isNaN(at) ? 0 : at - nowMs;
    this.space = data.space;
    this.name = data.name ?? undefined;
    const before = this.entries;
    this.entries = new Map();
    for (const line of data.participants ?? []) {
      const entry = before.get(line.id) ?? newEntry(line.id);
      entry.connected = line.connected === true;
      entry.joinedMs = undefined;
      const status = readStatus(line.status);
      if (status) applyStatus(entry, status, Number.isFinite(line.age_seconds) ? nowMs - line.age_seconds * 1000 : nowMs);
      else entry.status = undefined;
      mark(entry, line);
      this.entries.set(line.id, entry);
    }
  }

  /** Apply one envelope. Returns what it changed, {entry, compacted}, or undefined. */
  receive(envelope, nowMs) {
    const payload = isRecord(envelope.payload) ? envelope.payload : {};
    switch (envelope.kind) {
      case "participant/status":
        return this._status(envelope, payload, nowMs);
      case "system/presence":
        return this._presence(payload, nowMs);
      case "space/kick":
        this.entries.delete(payload.participant_id);
        return undefined;
      default:
        return undefined;
    }
  }

  /** Mark the figures that are old; `outdated` has the whole list. Returns the participants that changed. */
  markOutdated(outdated) {
    return [...this.entries.values()].filter((entry) => mark(entry, isRecord(outdated) ? outdated[entry.id] : undefined)).map(({ id }) => id);
  }

  /** The age of a protocol time in milliseconds, by the gateway's clock; undefined if it is invalid. */
  elapsedMs(wireTime, nowMs) {
    const at = parseTime(wireTime);
    return Number.isNaN(at) ? undefined : Math.max(0, nowMs + this._skewMs - at);
  }

  /** A local time by the gateway's clock. */
  nowMs(localMs) {
    return localMs + this._skewMs;
  }

  _status(envelope, payload, nowMs) {
    if (hasAddressee(envelope.to) && !isWhole(payload)) return undefined;
    const status = readStatus(payload);
    if (!status) return undefined;
    const entry = this._entry(envelope.from);
    // A status replayed after a reconnect keeps its age; one from the future counts as new.
    const compacted = applyStatus(entry, status, nowMs - (this.elapsedMs(envelope.ts, nowMs) ?? 0));
    return { entry, compacted };
  }

  _presence(payload, nowMs) {
    const id = payload.participant?.id;
    if (typeof id !== "string" || !["join", "leave", "invited"].includes(payload.event)) return undefined;
    if (payload.event === "leave" && !this.entries.has(id)) return undefined; // it was removed
    const entry = this._entry(id);
    entry.connected = payload.event === "join";
    if (entry.connected) entry.joinedMs = this.nowMs(nowMs);
    return { entry, compacted: false };
  }

  _entry(id) {
    let entry = this.entries.get(id);
    if (!entry) this.entries.set(id, (entry = newEntry(id)));
    return entry;
  }
}

const newEntry = (id) => ({ id, connected: false, status: undefined, receivedMs: undefined, joinedMs: undefined, outdated: undefined, figureAt: undefined });

/** Set whether the figure of an entry is old, as the gateway says. Returns whether that changed. */
function mark(entry, { outdated, figure_at: figureAt } = {}) {
  const before = entry.outdated;
  entry.outdated = outdated ?? undefined;
  entry.figureAt = figureAt ?? undefined;
  return entry.outdated !== before;
}

/** Store a status in an entry. Returns whether it reports a new compaction. */
function applyStatus(entry, status, receivedMs) {
  const before = entry.status?.context;
  const known = before?.last_compaction?.at;
  const now = status.context?.last_compaction?.at;
  Object.assign(entry, { status, receivedMs, outdated: undefined, figureAt: undefined });
  return before !== undefined && now !== undefined && now !== known;
}
