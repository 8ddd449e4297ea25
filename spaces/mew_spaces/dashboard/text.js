// Turns figures into text. Pure: no DOM, no clock.
// What is said about a participant comes from the gateway; here are the words for answers and for what people ask.

import WORDS from "./words.json" with { type: "json" };
import { parseStatus } from "./status.js";

// Python reads the same file.
const { skipped: SKIPPED, counted: COUNTED } = WORDS;

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

/** Format a duration in its largest unit. */
export function span(ms) {
  const seconds = Math.max(0, ms / 1000);
  for (const [unit, size] of UNITS) if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  return `${Math.floor(seconds)} s`;
}

/** Format a count with its noun, in the plural where needed. */
export const counted = (count, word) => `${grouped(count)} ${word}${count === 1 ? "" : "s"}`;

/** Whether a figure with this basis is shown without "~". */
export const isCounted = (basis) => COUNTED.includes(basis);

/** What model calls cost, in tokens and money as far as known; empty if neither is. */
function costs(cost) {
  const isCountedInTokens = Number.isInteger(cost?.prompt_tokens) && Number.isInteger(cost.completion_tokens);
  const cached = Number.isInteger(cost?.cached_tokens) ? `, ${grouped(cost.cached_tokens)} of them cached` : "";
  const money = Number.isFinite(cost?.amount) && typeof cost.currency === "string" ? `${Number(cost.amount.toPrecision(3))} ${cost.currency}` : "";
  return [isCountedInTokens && `${grouped(cost.prompt_tokens + cost.completion_tokens)} tokens${cached}`, money].filter(Boolean).join(", ");
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

const REQUESTS = {
  compact: (payload) => `compact${Number.isInteger(payload.target_tokens) ? ` to at most ${grouped(payload.target_tokens)} tokens` : ""}`,
  forget: (payload) => `forget ${payload.entries ? `its ${payload.direction} ${counted(payload.entries, "message")}` : `half of its messages, the ${payload.direction}`}`,
  clear: () => "clear its history",
  pin: (payload) => `pin “${shortened(payload.text)}”`,
  unpin: (payload) => `remove the pin “${shortened(payload.pin)}”`,
  undo: (payload) => `undo ${payload.number ? `compaction ${payload.number}` : "its last compaction"}`,
  restart: () => "start again with an empty history",
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
