// Turns figures into text. Pure: no DOM, no clock.
// As in the context report, an unknown figure is never shown as a number, and an estimated one is marked with "~".

import WORDS from "./board_words.json" with { type: "json" };
import { parseStatus } from "./status.js";

// The words of the board, which Python reads from the same file.
const { reasons: REASONS, skipped: SKIPPED, outdated: OUTDATED, parts: PARTS, counted: COUNTED } = WORDS;

const WINDOW_BASIS = {
  configured: "configured",
  loaded: "loaded by the model server",
  trained: "model maximum",
  assumed: "assumed; not reported by the model server",
  agent_reported: "reported by the agent itself",
};

const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const UNITS = [["d", 86_400], ["h", 3_600], ["min", 60]];

/** Format a number with thousands separators. */
export const grouped = (value) => GROUPED.format(value);

/** Format a number; "~" marks an estimate. */
export const marked = (value, isExact) => `${isExact ? "" : "~"}${grouped(value)}`;

/** Format a name of the protocol for people: near_limit as "near limit". */
export const plain = (name) => String(name).replace(/[_\s]+/g, " ").trim();

/** End a text with a full stop. */
export const sentence = (text) => (/[.!?…]$/.test(text.trim()) ? text.trim() : `${text.trim()}.`);

/** Begin a text with a capital letter and end it with a full stop. */
export const wholeSentence = (text) => sentence(text.charAt(0).toUpperCase() + text.slice(1));

/** The status without the detail after its colon. */
export const statusWord = (status) => plain(parseStatus(status.status).word);

/** The detail of a status, as in "compaction_failed:the model is unreachable". */
export const statusDetail = (status) => {
  const { word, detail } = parseStatus(status.status);
  return word === "undone" ? `compaction ${detail}` : detail;
};

/** Format a duration in its largest unit. */
export function span(ms) {
  const seconds = Math.max(0, ms / 1000);
  for (const [unit, size] of UNITS) if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  return `${Math.floor(seconds)} s`;
}

/** The age of a protocol time in its largest unit; undefined if it is invalid. `age` gives it in milliseconds. */
export function ageOf(time, age) {
  const ms = age(time);
  return ms === undefined ? undefined : span(ms);
}

/** Format a count with its noun, in the plural where needed. */
export const counted = (count, word) => `${grouped(count)} ${word}${count === 1 ? "" : "s"}`;

/** Whether a figure with this basis is shown without "~". */
export const isCounted = (basis) => COUNTED.includes(basis);

/** How the figure is known: its basis, or an estimate without a context report. */
export function basisOf(status) {
  if (status.context) return status.tokens === undefined ? "unknown" : status.context.basis;
  return status.tokens === undefined ? "unknown" : "estimate";
}

/** That the figure of an entry is old, and how old; empty if it is of the last turn. The gateway decides it. */
export function oldFigure({ outdated, figureAt }, age) {
  if (!outdated) return "";
  const old = age(figureAt);
  return `figure ${old === undefined ? "of unknown age" : `${old} old`}, ${OUTDATED[outdated] ?? plain(outdated)}`;
}

/** Severity 0 to 3 as text, or "unknown". */
export function severityOf(status) {
  const severity = status.context?.severity;
  return Number.isInteger(severity) && severity >= 0 && severity <= 3 ? String(severity) : "unknown";
}

/** How full the window is in whole percent, rounded half up; undefined if either figure is unknown. */
export function percentOf(status) {
  if (status.tokens === undefined || status.max_tokens === undefined) return undefined;
  return Math.floor((200 * status.tokens + status.max_tokens) / (2 * status.max_tokens));
}

/** The amount in the context. */
export function amount(status) {
  return status.tokens === undefined ? "Unknown" : marked(status.tokens, isCounted(basisOf(status)));
}

/** The context window, shown after the amount. */
export function ofWindow(status) {
  if (status.max_tokens === undefined) return status.tokens === undefined ? "" : "tokens, window unknown";
  const assumed = status.context?.max_tokens_basis === "assumed" ? " (assumed)" : "";
  if (status.tokens === undefined) return `· window ${grouped(status.max_tokens)}${assumed}`;
  return `of ${grouped(status.max_tokens)}${assumed}`;
}

/** The level and the percentage. Empty when the amount is unknown as well, because that is already said. */
export function level(status) {
  const hasLevel = severityOf(status) !== "unknown";
  if (!hasLevel && status.tokens === undefined) return "";
  const word = hasLevel ? plain(status.context.level) : "level unknown";
  const percent = percentOf(status);
  return percent === undefined ? word : `${word} · ${percent}%`;
}

/** How the figure is known, its age, and when the agent compacts next. `age` formats the age of a protocol time. */
export function known(status, receivedAgo, age, outdated) {
  const report = status.context;
  const last = report?.last_reported;
  const before = last ? `last reported ${grouped(last.tokens)}${ago(age(last.measured_at), ", ")}` : "";
  const measuredAgo = age(report?.measured_at) ?? receivedAgo;
  const pieces = {
    reported: [ago(measuredAgo, " ")],
    agent_reported: [ago(measuredAgo, " ")],
    estimate: [ago(receivedAgo, ", received ")],
    projected: ["", before],
    server_counted: ["", before],
    provisional: [": it may still change", before],
    unknown: [`: ${REASONS[report?.reason] ?? "nothing reported"}`, before],
  }[basisOf(status)];
  pieces[0] = `${plain(basisOf(status))}${pieces[0]}`;
  return [...pieces, outdated ? "" : compactsIn(report)].filter(Boolean).join(" · ");
}

/** When the agent compacts automatically; empty if it does not, or if that is not known. */
export function compactsIn({ compact_at_tokens: at, turns_to_compaction: turns } = {}) {
  if (turns === undefined) return at === undefined ? "" : `compacts at ${grouped(at)}`;
  const when = turns === 0 ? "compaction due" : `compacts in ~${counted(turns, "turn")}`;
  return at === undefined ? when : `${when} (at ${grouped(at)})`;
}

const ago = (words, lead) => (words === undefined ? "" : `${lead}${words} ago`);

/** What an agent wants approved, for how long it has waited, and who can decide. */
function approval(one, age) {
  const given = inBrief(one.arguments, 120);
  const isCompaction = one.tool === "compact_context";
  const shown = isCompaction ? freedBy(one.arguments) : given && ` (${given})`;
  const what = isCompaction ? "approval of a compaction" : one.what;
  const who = Array.isArray(one.who_may_answer) && one.who_may_answer.length ? one.who_may_answer.join(", ") : "no connected participant";
  return `${what}${shown}${ago(age(one.since), ", asked ")} (${who} can decide)`;
}

function freedBy({ present_tokens: present, freed_tokens: freed } = {}) {
  return Number.isInteger(present) && Number.isInteger(freed) ? ` (~${grouped(present)} tokens, frees ~${grouped(freed)})` : "";
}

/** How many texts are pinned, and the beginning of each hash. */
function pins(all) {
  const hashes = all.slice(0, 3).map((one) => one.hash.slice(0, 8));
  return `${counted(all.length, "pin")} ${hashes.join(" ")}${all.length > 3 ? " ..." : ""}`;
}

/** The sessions of an agent, whose figures are not part of its own. */
function sessions(all) {
  const count = counted(all.length, "session");
  const known = all.filter((one) => Number.isInteger(one.tokens) && one.max_tokens > 0);
  if (!known.length) return count;
  const fullest = known.reduce((a, b) => (b.tokens / b.max_tokens > a.tokens / a.max_tokens ? b : a));
  const tokens = marked(fullest.tokens, isCounted(fullest.context?.basis));
  return `${count}, fullest ${tokens} of ${grouped(fullest.max_tokens)}`;
}

/** Everything else that needs attention; empty if nothing does. */
export function remarks(entry, receivedAgo, age) {
  const { status } = entry;
  const report = status.context;
  const found = [entry.connected ? oldFigure(entry, age) : "", statusDetail(status)];
  if (!entry.connected) found.push(`disconnected, last status${ago(receivedAgo, " ")}`);
  if (percentOf(status) > 100) found.push("larger than its window");
  if (report?.stale_messages > 0) found.push(`${counted(report.stale_messages, "item")} added since then`);
  if (Number.isInteger(report?.spent_tokens)) {
    const budget = Number.isInteger(report.budget_tokens) ? ` of ${grouped(report.budget_tokens)}` : "";
    found.push(`spent ${grouped(report.spent_tokens)}${budget} tokens`);
  }
  const waits = (entry.connected && report?.waiting) || []; // a proposal ends when its proposer leaves
  for (const one of waits) if (one.kind === "approval") found.push(approval(one, age));
  if (report?.queued?.messages > 0) found.push(`${counted(report.queued.messages, "message")} queued (${partTokens(report.queued)} tokens)`);
  const held = waits.filter((one) => one.kind === "room").length;
  if (held) found.push(`${counted(held, "message")} held for lack of room`);
  if (report?.pins?.length) found.push(pins(report.pins));
  if (report?.sessions?.length) found.push(sessions(report.sessions));
  if (report?.injection) {
    const left = report.injection.remaining === undefined ? "" : ` (${grouped(report.injection.remaining)} left)`;
    found.push(`active: ${plain(report.injection.kind)}${left}`);
  }
  return found.filter(Boolean).join(" · ");
}

/** The last compaction in one line. */
export function lastCompaction(report, age) {
  const last = report?.last_compaction;
  if (!last) return "";
  const when = age(last.at);
  const freed = Number.isSafeInteger(last.freed_tokens) ? `freed ${marked(last.freed_tokens, last.basis !== "projected")} tokens` : "freed an unknown number of tokens";
  const reasons = [typeof last.trigger === "string" ? plain(last.trigger) : "", typeof last.reason === "string" ? last.reason : ""].filter(Boolean);
  const why = reasons.length ? ` (${reasons.join(": ")})` : "";
  return `Last compaction ${freed}${ago(when, " ")}${why}`;
}

/** How much the last compaction replaced or removed. The summary's text stays with its agent; no envelope holds it. */
export function replaced(report) {
  const last = report?.last_compaction;
  if (!(Number.isInteger(last?.freed_messages) && last.freed_messages > 0)) return "";
  const messages = counted(last.freed_messages, "message");
  return last.summary_tokens > 0 ? `${messages} replaced by a summary of ~${grouped(last.summary_tokens)} tokens${costs(last.cost) && `, for ${costs(last.cost)}`}` : `${messages} removed without a summary`;
}

/** What model calls cost, in tokens and money as far as known; empty if neither is. */
function costs(cost, calls = "") {
  const isCountedInTokens = Number.isInteger(cost?.prompt_tokens) && Number.isInteger(cost.completion_tokens);
  const cached = Number.isInteger(cost?.cached_tokens) ? `, ${grouped(cost.cached_tokens)} of them cached` : "";
  const money = Number.isFinite(cost?.amount) && typeof cost.currency === "string" ? `${Number(cost.amount.toPrecision(3))} ${cost.currency}` : "";
  return [isCountedInTokens && `${grouped(cost.prompt_tokens + cost.completion_tokens)} tokens${calls}${cached}`, money].filter(Boolean).join(", ");
}

/** What all model calls of an agent cost; empty if it does not report it. */
function spending(all) {
  const calls = Number.isInteger(all?.calls) ? ` in ${counted(all.calls, "call")}` : "";
  const unreported = all?.unreported_calls > 0 ? `${counted(all.unreported_calls, "call")} reported none` : "";
  return [costs(all, calls), unreported].filter(Boolean).join("; ");
}

/** A suggestion that saves tokens. The saving is always an estimate. */
export function saving({ text, tokens_saved: tokens, impact }) {
  const cost = typeof impact === "string" ? `, ${plain(impact)} impact` : "";
  return `${text.trim().replace(/[.]$/, "")} (saves ~${grouped(tokens)} tokens${cost})`;
}

/** The name of a part of the context. */
export const partName = (part) => PARTS[part] ?? plain(part);

/** How far long work is: "3 of 7 pieces"; empty without any. */
export function progress(report) {
  const one = report?.progress;
  return one ? `${grouped(one.done)} of ${grouped(one.total)} ${plain(one.unit ?? "steps")}` : "";
}

/** The tokens of a part. */
export const partTokens = (part) => marked(part.tokens, isCounted(part.basis) || part.basis === "tokenizer");

/** What a part of the prefix is called. */
export function prefixName({ part, name, count }) {
  if (part === "tool") return String(name ?? "tool");
  return part === "other_tools" ? counted(count ?? 0, "smaller tool") : plain(part);
}

/** The result of a compact request. `done` is the payload of participant/compact-done. */
export function compactAnswer(done, targetTokens) {
  if (done.skipped === true) return `Skipped: ${sentence(skippedBecause(done, targetTokens))}`;
  if (!Number.isInteger(done.freed_tokens)) return "Compacted; the tokens freed were not reported.";
  const freed = `Freed ${marked(done.freed_tokens, done.basis !== "projected")} tokens`;
  const messages = Number.isInteger(done.freed_messages) ? ` in ${counted(done.freed_messages, "message")}` : "";
  if (!Number.isInteger(done.tokens_after)) return `${freed}${messages}.`;
  const window = Number.isInteger(done.max_tokens) ? ` of ${grouped(done.max_tokens)}` : "";
  const counts = done.basis === "server_counted";
  const how = counts ? "counted by its model server" : "projected until its next call";
  return `${freed}${messages}; now ${marked(done.tokens_after, counts)}${window} (${how}).`;
}

function skippedBecause(done, targetTokens) {
  if (done.reason === "already_below_target") {
    const target = targetTokens === undefined ? "the target" : grouped(targetTokens);
    return `already below ${target}${Number.isInteger(done.tokens_before) ? ` (now ${grouped(done.tokens_before)})` : ""}`;
  }
  return SKIPPED[done.reason] ?? (typeof done.reason === "string" ? done.reason : "no reason given");
}

/** The prompt tokens that the provider read from its cache, and their share. */
function cached({ cached_tokens: tokens, prompt_tokens: prompt }) {
  if (!Number.isInteger(tokens)) return undefined;
  return prompt > 0 && tokens <= prompt ? `${grouped(tokens)} (${Math.floor((100 * tokens) / prompt)}%)` : grouped(tokens);
}

/** Label and value of each figure of a status. */
export function figures(status, age) {
  const report = status.context ?? {};
  const next = report.next_prompt_tokens;
  const measured = age(report.measured_at);
  const rows = [
    ["next request", next === undefined ? undefined : `${marked(next, isCounted(report.next_prompt_basis))} (${plain(report.next_prompt_basis ?? "estimate")})`],
    ["window", WINDOW_BASIS[report.max_tokens_basis]],
    ["messages", grouped(status.messages_in_context)],
    ["prompt", report.prompt_tokens],
    ["from cache", cached(report)],
    ["completion", report.completion_tokens],
    ["reasoning", report.reasoning_tokens],
    ["spent so far", spending(report.spending) || undefined],
    ["per turn", report.tokens_per_turn === undefined ? undefined : `~${grouped(report.tokens_per_turn)}`],
    ["drift", report.drift_tokens],
    ["latency", status.latency_ms === undefined ? undefined : `${grouped(status.latency_ms)} ms`],
    ["measured", measured === undefined ? undefined : `${measured} ago`],
    ["compactions", report.compactions],
    ["last compaction", lastCompaction(report, age).replace(/^Last compaction /, "") || undefined],
    ["policy", report.policy],
  ];
  return rows
    .filter(([, value]) => value !== undefined && value !== null)
    .map(([label, value]) => [label, typeof value === "number" ? grouped(value) : String(value)]);
}


/** How the figure is known, in a word or two. */
export function basisWord(status) {
  const basis = basisOf(status);
  if (basis === "unknown") return REASONS[status.context?.reason] ?? "not reported";
  return plain(basis);
}

/** The composition of a window: parts {part, tokens, basis}, then what is free until it compacts, and the reserve. */
export function composition(status) {
  const { tokens, max_tokens: max, context } = status;
  const parts = (context?.breakdown ?? []).filter((part) => part.tokens > 0);
  if (tokens === undefined || max === undefined) return parts;
  const unsent = parts.filter((part) => part.part === "unsent").reduce((sum, part) => sum + part.tokens, 0);
  const used = tokens + unsent;
  const rest = tokens - parts.reduce((sum, part) => sum + (part.part === "unsent" ? 0 : part.tokens), 0);
  const known = rest > 0 ? [...parts, { part: parts.length ? "other" : "used", tokens: rest, basis: basisOf(status) }] : parts;
  const mark = Math.min(context?.compact_at_tokens ?? max, max);
  const basis = isCounted(basisOf(status)) && !unsent ? "exact" : "projected";
  const left = [
    { part: "free", tokens: Math.max(0, mark - used), basis },
    { part: "reserve", tokens: Math.max(0, max - Math.max(mark, used)), basis },
  ];
  return [...known, ...left.filter((part) => part.tokens > 0)];
}

const REQUESTS = {
  compact: (payload) => `compact${Number.isInteger(payload.target_tokens) ? ` to at most ${grouped(payload.target_tokens)} tokens` : ""}`,
  forget: (payload) => `forget ${payload.entries ? `its ${payload.direction} ${counted(payload.entries, "message")}` : `half of its messages, the ${payload.direction}`}`,
  clear: () => "clear its history",
  pin: (payload) => `pin “${shortened(payload.text)}”`,
  unpin: (payload) => `remove the pin “${shortened(payload.pin)}”`,
  undo: (payload) => `undo ${payload.number ? `compaction ${payload.number}` : "its last compaction"}`,
  restart: () => "restart",
  shutdown: () => "shut down",
  pause: (payload) => `pause${payload.timeout_seconds ? ` for ${span(1000 * payload.timeout_seconds)}` : ""}`,
  resume: () => "resume",
};

/** Arguments in one short line. */
export function inBrief(args, most = 90) {
  const brief = (value) => {
    if (typeof value === "string") return value.slice(0, 2 * most).replace(/\s+/g, " ");
    if (typeof value !== "object" || value === null) return String(value);
    return Array.isArray(value) ? (value.length ? "[…]" : "[]") : "{…}";
  };
  if (typeof args !== "object" || args === null) return args === undefined || args === null ? "" : shortened(brief(args), most);
  let line = "";
  for (const key in args) {
    if (line.length > most) break; // the rest is not read
    line += `${line && ", "}${key.slice(0, most)}: ${brief(args[key])}`;
  }
  return shortened(line, most);
}

/** The beginning of a text. */
export const shortened = (value, most = 80) => (String(value).length > most ? `${String(value).slice(0, most)}…` : String(value));

/** Which participant asked which one for what. */
export function controlSentence({ from, to, action, payload }) {
  const what = (REQUESTS[action] ?? (() => plain(action)))(payload);
  const why = typeof payload.reason === "string" && payload.reason.trim() ? `: ${payload.reason.trim()}` : "";
  return `${from} asked ${to.length ? to.join(", ") : "everyone"} to ${what}${why}`;
}

/** What the participant answered; empty before it did. */
export function controlAnswer({ to, answer, answerKind, payload }) {
  if (!answer) return "";
  const who = to[0];
  if (answerKind === "participant/compact-done") return `${who}: ${compactAnswer(answer, payload.target_tokens)}`;
  if (answerKind === "participant/undo-done") return `${who}: ${undoAnswer(answer)}`;
  const { word, detail } = parseStatus(answer.status);
  if (word === "refused") return `${who}: Refused: ${sentence(detail)}`;
  return word && word !== "active" ? `${who}: ${sentence(plain(answer.status))}` : "";
}

/** What a grant, a revocation or a removal did, and which rights of others ended with it. */
export function membershipAnswer(kind, receipt) {
  const ended = receipt.ended?.length ? ` Ended too: ${endedRights(receipt)}.` : "";
  if (kind === "capability/revoke" && !receipt.revoked?.length && !ended) return "Nothing to revoke: no grant gave this.";
  return `Accepted by the gateway.${ended}`;
}

/** Rights that ended because what they came from was withdrawn: of whom, which, and who had given them. */
export function endedRights({ ended, omitted }) {
  const one = ({ participant, capabilities, granted_by: giver }) => `${participant}: ${capabilities.flatMap((each) => each.kind).join(", ")} from ${giver}`;
  return [...ended.map(one), ...(omitted ? [`${grouped(omitted)} more`] : [])].join("; ");
}

/** The result of an undo. */
export function undoAnswer(done) {
  if (done.status !== "undone") return `Refused: ${sentence(String(done.reason ?? "no reason given"))}`;
  const messages = Number.isInteger(done.restored_messages) ? ` ${counted(done.restored_messages, "message")}` : "";
  const tokens = Number.isInteger(done.restored_tokens) ? ` with ~${grouped(done.restored_tokens)} tokens` : "";
  return `Undone: restored${messages}${tokens}.`;
}

/** A recorded compaction or other change of a context, in one line. */
export function changeLine(entry) {
  const before = Number.isInteger(entry.tokens_before) ? grouped(entry.tokens_before) : "?";
  const after = Number.isInteger(entry.tokens_after) ? marked(entry.tokens_after, entry.basis !== "projected") : "?";
  const freed = Number.isInteger(entry.freed_tokens) ? `, freed ${marked(entry.freed_tokens, entry.basis !== "projected")}` : "";
  return `${before} → ${after}${freed}`;
}

/** The facts about a recorded compaction as [label, value]. */
export function changeFacts(entry) {
  const cost = costs(entry.cost);
  const spentTokens = Number.isInteger(entry.spent_tokens) ? `${grouped(entry.spent_tokens)} tokens` : undefined;
  return [
    ["trigger", plain(entry.trigger ?? "unknown")],
    ["asked by", entry.asked_by ?? (entry.number === undefined ? undefined : "the agent itself")],
    ["reason", entry.reason],
    ["basis", entry.basis && plain(entry.basis)],
    ["messages", Number.isInteger(entry.freed_messages) ? grouped(entry.freed_messages) : undefined],
    ["summary", entry.summary_tokens > 0 ? `~${grouped(entry.summary_tokens)} tokens` : undefined],
    ["cost", cost || spentTokens],
    ["undone by", entry.undone_by && `entry ${entry.undone_by}`],
    ["undoes", entry.undoes && `entry ${entry.undoes}`],
    ["problem", entry.problem],
  ].filter(([, value]) => value !== undefined && value !== null && value !== "");
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** A time of day, with the date if it was not today. */
export function clock(ms) {
  const isToday = new Date(ms).toDateString() === new Date().toDateString();
  return isToday ? CLOCK.format(ms) : `${DAY.format(ms)} ${CLOCK.format(ms)}`;
}
