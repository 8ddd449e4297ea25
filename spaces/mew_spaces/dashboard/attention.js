// How urgent each participant is, in a tone and a word, and the order of the list. Pure. What needs a person comes from
// the gateway; statuses that need no person get their tone here. Trouble never looks calm.

import { hasContext } from "./board.js";
import { parseStatus } from "./status.js";
import { basisOf, counted, percentOf, plain, severityOf, statusWord } from "./text.js";

/** The tones, the most urgent first. */
export const TONES = ["blocking", "warning", "notice", "fine", "unknown", "none", "away"];

const WORDS = {
  approval: "waits for approval",
  sign_in: "needs a sign-in",
  model_unreachable: "model unreachable",
  model_failed: "model failed",
  program_ended: "program ended",
  turn_stopped: "turn stopped",
  handler_failed: "event handler failed",
  compaction_stalled: "compaction stalled",
  compaction_failed: "compaction failed",
  loop: "loop stopped",
  held: "holds messages",
  disconnected: "disconnected",
  nearly_full: "nearly full",
  about_to_compact: "compacts next",
};

/** The tone of a board entry. `items` are what needs a person about it. */
export function toneOf(entry, items = []) {
  const { status, connected } = entry;
  const found = items.map((item) => item.level);
  const said = parseStatus(status?.status);
  if (!connected) return found.includes("blocking") ? "blocking" : found.includes("warning") ? "warning" : "away";
  const severity = status ? Number(severityOf(status)) : 0;
  if (found.includes("blocking") || said.has("blocking") || severity >= 3) return "blocking";
  if (found.includes("warning") || said.has("warning") || severity === 2) return "warning";
  if (found.includes("notice") || severity === 1 || (status && compactsNext(status))) return "notice";
  if (!status || !hasContext(entry)) return "none";
  return basisOf(status) === "unknown" ? "unknown" : "fine";
}

/** The tone of a gauge: how close the window is to its limit, whatever else the agent needs. */
export function fillTone(status) {
  const severity = Number(severityOf(status));
  if (severity >= 2) return severity === 2 ? "warning" : "blocking";
  if (severity === 1 || compactsNext(status)) return "notice";
  return basisOf(status) === "unknown" ? "unknown" : "fine";
}

/** Whether the next turn compacts, or the window is nearly full for an agent that does not compact automatically. */
function compactsNext({ tokens, max_tokens: max, context: report }) {
  const at = report?.compact_at_tokens;
  if (at === undefined) return tokens !== undefined && max !== undefined && tokens * 10 >= max * 9;
  return report.turns_to_compaction <= 1 || report.next_prompt_tokens >= at || tokens >= at;
}

/** The most telling word about an entry. */
export function wordOf(entry, items = []) {
  const { status, connected } = entry;
  const urgent = items.find((item) => WORDS[item.kind]);
  if (urgent && urgent.level !== "notice") return WORDS[urgent.kind];
  if (!connected) return status ? "disconnected" : "not connected";
  if (!status) return "connected";
  const word = statusWord(status);
  if (word === "compacting" && status.context?.progress) return `${word} ${status.context.progress.done}/${status.context.progress.total}`;
  if (word && !parseStatus(status.status).has("calm")) return word;
  if (urgent || (hasContext(entry) && compactsNext(status))) return WORDS[urgent?.kind ?? "about_to_compact"];
  if (!hasContext(entry)) return word || "connected";
  if (basisOf(status) === "unknown") return "unknown";
  return severityOf(status) === "unknown" ? "level unknown" : plain(status.context.level);
}

/** Sort lines {id, tone, percent, isReporting}: by tone, then the fullest, then by name. */
export function compareLines(a, b) {
  return (
    TONES.indexOf(a.tone) - TONES.indexOf(b.tone) ||
    Number(b.isReporting) - Number(a.isReporting) ||
    Math.floor((b.percent ?? -1) / 10) - Math.floor((a.percent ?? -1) / 10) ||
    (a.id < b.id ? -1 : 1)
  );
}

/** What the list shows of an entry. */
export function lineOf(entry, items) {
  const isReporting = hasContext(entry);
  return { id: entry.id, entry, tone: toneOf(entry, items), word: wordOf(entry, items), isReporting, percent: isReporting ? percentOf(entry.status) : undefined };
}

export const FILTERS = {
  all: ["All", () => true],
  attention: ["Needs attention", (line) => ["blocking", "warning", "notice"].includes(line.tone)],
  agents: ["With a context", (line) => line.isReporting],
  others: ["People and tools", (line) => !line.isReporting],
};

/** The lines that a filter and a search text leave, in order. */
export function selectLines(lines, filter, search) {
  const wanted = search.trim().toLowerCase();
  const passes = (FILTERS[filter] ?? FILTERS.all)[1];
  const model = (line) => line.entry.status?.context?.model ?? "";
  const found = lines.filter((line) => passes(line) && (!wanted || `${line.id} ${line.word} ${model(line)}`.toLowerCase().includes(wanted)));
  return found.sort(compareLines);
}

/** The whole space in one sentence. */
export function glance(lines) {
  const agents = lines.filter((line) => line.isReporting);
  const count = (test) => agents.filter(test).length;
  const pieces = [
    [count((line) => line.tone === "blocking"), "blocked"],
    [count((line) => line.tone === "warning"), "in trouble or near the limit"],
    [count((line) => line.tone === "notice"), "compacting soon"],
    [count((line) => line.entry.status.status === "compacting"), "compacting"],
    [count((line) => line.tone === "unknown"), "unknown"],
    [count((line) => line.tone === "away"), "disconnected"],
  ].filter(([number]) => number > 0);
  if (!agents.length) return "No agent has reported a context yet.";
  return `${counted(agents.length, "context window")}${pieces.length ? `: ${pieces.map(([number, what]) => `${number} ${what}`).join(", ")}` : ", all fine"}`;
}

/** A queue item's words: how long it has waited. */
export const titleOf = (item) => WORDS[item.kind] ?? plain(item.kind);

/** Items by participant, including those that an aggregated item holds. */
export function itemsByParticipant(items) {
  const found = new Map();
  const add = (item) => {
    if (item.items?.length) return item.items.forEach(add);
    if (!item.participant) return;
    if (!found.has(item.participant)) found.set(item.participant, []);
    found.get(item.participant).push(item);
  };
  (items ?? []).forEach(add);
  return found;
}
