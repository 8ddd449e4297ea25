// Numbers, durations and times of the page itself. Pure: no DOM. The gateway writes sentences about participants and their answers.

const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const UNITS = [["d", 86_400], ["h", 3_600], ["min", 60]];

/** Format a number with thousands separators. */
export const grouped = (value) => GROUPED.format(value);

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
    if (line.length > most) break; // the rest is not needed
    line += `${line && ", "}${key.slice(0, most)}: ${brief(args[key])}`;
  }
  return shortened(line, most);
}

/** The beginning of a text. */
export const shortened = (value, most = 80) => (String(value).length > most ? `${String(value).slice(0, most)}…` : String(value));

/** An answer in the gateway's words. Without them it says that there is one. */
export const answered = ({ said }) => wholeSentence(said?.text || "answered");

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** A time of day, with the date if it was not today. */
export function clock(ms) {
  const isToday = new Date(ms).toDateString() === new Date().toDateString();
  return isToday ? CLOCK.format(ms) : `${DAY.format(ms)} ${CLOCK.format(ms)}`;
}
