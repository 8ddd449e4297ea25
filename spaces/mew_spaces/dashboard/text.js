// Turns figures into text. Pure: no DOM, no clock.
// What is said about a participant, and its answers, come from the gateway in words. Here are words for what people ask,
// which the terminal does not show, and numbers for the chart, whose reading follows the pointer without the gateway.

import WORDS from "./words.json" with { type: "json" };

const { counted: COUNTED } = WORDS; // Python reads the same file

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
export const controlAnswer = ({ to, answer }) => (answer && answer.payload?.status !== "active" ? `${to[0]}: ${answered(answer)}` : "");

/** An answer in the gateway's words. Without them it says that there is one. */
export const answered = ({ said }) => wholeSentence(said?.text || "answered");

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

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** A time of day, with the date if it was not today. */
export function clock(ms) {
  const isToday = new Date(ms).toDateString() === new Date().toDateString();
  return isToday ? CLOCK.format(ms) : `${DAY.format(ms)} ${CLOCK.format(ms)}`;
}
