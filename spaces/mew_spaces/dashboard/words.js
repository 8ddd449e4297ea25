// What the page says of figures. Pure: no page, no clock.
// The rule of the report holds: what is not known is never a number, and what is not reported carries a "~".

const REASONS = {
  no_call_yet: "no call yet",
  usage_unavailable: "the model server reported no usage",
  limit_unavailable: "the size of the window is not known",
  cleared: "history was cleared, no call since",
  restarted: "restarted, no call since",
  model_changed: "another model serves now, no call since",
};

const SKIPPED = {
  no_history: "nothing to compact yet",
  compaction_in_progress: "a compaction is running already",
};

const WINDOW_BASIS = {
  configured: "configured",
  loaded: "as the model server loaded it",
  trained: "the model's maximum",
  assumed: "assumed, the model server did not say",
};

const PARTS = {
  prefix: "prompt and tools",
  summary: "summary",
  pins: "pins",
  messages: "messages",
  tool_results: "tool results",
  reply: "reply",
  unsent: "not sent yet",
};

const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const UNITS = [["d", 86_400], ["h", 3_600], ["min", 60]];

/** A number with thousands separators. */
export const grouped = (value) => GROUPED.format(value);

/** A number, marked as an estimate unless it is exact or reported. */
const marked = (value, isExact) => `${isExact ? "" : "~"}${grouped(value)}`;

/** A name of the wire as people read it: near_limit as "near limit". */
export const plain = (name) => String(name).replace(/[_\s]+/g, " ").trim();

/** A text with a full stop at its end. */
export const sentence = (text) => (/[.!?…]$/.test(text.trim()) ? text.trim() : `${text.trim()}.`);

/** The word of a status, without what follows its colon. */
export const statusWord = (status) => plain((status.status ?? "").split(":")[0]);

/** Statuses that say nothing a reader has to act on. */
const QUIET = new Set(["", "active", "idle", "ready", "joined", "compacted"]);

/** What somebody without a context says of itself, in brackets; empty when all is well. */
export const trouble = ({ status, connected }) =>
  connected && status && !QUIET.has(status.status ?? "")
    ? ` (${[statusWord(status), statusDetail(status)].filter(Boolean).join(": ")})`
    : "";

/** What a status says behind its word, as in "compaction_failed:the model is unreachable". */
const statusDetail = (status) => (status.status ?? "").split(":").slice(1).join(":").trim();

/** How long something took or is ago, in its largest unit. */
export function span(ms) {
  const seconds = Math.max(0, ms / 1000);
  for (const [unit, size] of UNITS) if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  return `${Math.floor(seconds)} s`;
}

/** Plural of a counted word. */
export const counted = (count, word) => `${grouped(count)} ${word}${count === 1 ? "" : "s"}`;

/** How the figure is known: reported, projected, unknown, or unlabelled when nobody said. */
export function basisOf(status) {
  if (status.context) return status.tokens === undefined ? "unknown" : status.context.basis;
  return status.tokens === undefined ? "unknown" : "unlabelled";
}

/** Severity 0 to 3 as text, or "unknown". */
export function severityOf(status) {
  const severity = status.context?.severity;
  return Number.isInteger(severity) && severity >= 0 && severity <= 3 ? String(severity) : "unknown";
}

/** The fill in whole percent, rounded half up; undefined when either figure is not known. */
export function percentOf(status) {
  if (status.tokens === undefined || status.max_tokens === undefined) return undefined;
  return Math.floor((200 * status.tokens + status.max_tokens) / (2 * status.max_tokens));
}

/** The amount in large figures; words when it is not known. */
export function amount(status) {
  return status.tokens === undefined ? "Not known" : marked(status.tokens, basisOf(status) === "reported");
}

/** What stands behind the amount. */
export function ofWindow(status) {
  if (status.max_tokens === undefined) return status.tokens === undefined ? "" : "tokens, window not known";
  const assumed = status.context?.max_tokens_basis === "assumed" ? " (assumed)" : "";
  if (status.tokens === undefined) return `· window ${grouped(status.max_tokens)}${assumed}`;
  return `of ${grouped(status.max_tokens)}${assumed}`;
}

/** How full, in words and percent. Empty when the amount is not known either, which says it all. */
export function level(status) {
  const isTold = severityOf(status) !== "unknown";
  if (!isTold && status.tokens === undefined) return "";
  const word = isTold ? plain(status.context.level) : "level unknown";
  const percent = percentOf(status);
  return percent === undefined ? word : `${word} · ${percent}%`;
}

/** How the figure is known, since when, and how far the next compaction is. `age` turns a wire time into words. */
export function known(status, receivedAgo, age) {
  const report = status.context;
  const pieces = [];
  const last = report?.last_reported;
  const before = last ? `last reported ${grouped(last.tokens)}${ago(age(last.measured_at), ", ")}` : "";
  switch (basisOf(status)) {
    case "reported":
      pieces.push(`reported${ago(age(report.measured_at) ?? receivedAgo, " ")}`);
      break;
    case "projected":
      pieces.push("projected", before);
      break;
    case "unlabelled":
      pieces.push(`unlabelled, it did not say how it knows; received${ago(receivedAgo, " ")}`);
      break;
    default:
      pieces.push(`unknown: ${REASONS[report?.reason] ?? "nothing reported"}`, before);
  }
  pieces.push(compactsIn(report));
  return pieces.filter(Boolean).join(" · ");
}

function compactsIn({ compact_at_tokens: at, turns_to_compaction: turns } = {}) {
  if (turns === undefined) return at === undefined ? "" : `compacts at ${grouped(at)}`;
  const when = turns === 0 ? "compaction is due" : `compacts in ~${counted(turns, "turn")}`;
  return at === undefined ? when : `${when} (at ${grouped(at)})`;
}

const ago = (words, lead) => (words === undefined ? "" : `${lead}${words} ago`);

/** Everything a reader should know beyond the figures; empty when all is well. */
export function remarks(entry, receivedAgo) {
  const { status } = entry;
  const report = status.context;
  const said = [statusDetail(status)];
  if (!entry.connected) said.push(`not connected, last heard of${ago(receivedAgo, " ")}`);
  if (percentOf(status) > 100) said.push("over its window");
  if (report?.stale_messages > 0) said.push(`${counted(report.stale_messages, "item")} added since`);
  if (Number.isInteger(report?.spent_tokens)) {
    const budget = Number.isInteger(report.budget_tokens) ? ` of ${grouped(report.budget_tokens)}` : "";
    said.push(`spent ${grouped(report.spent_tokens)}${budget}`);
  }
  if (report?.injection) {
    const left = report.injection.remaining === undefined ? "" : ` (${grouped(report.injection.remaining)} left)`;
    said.push(`in force: ${plain(report.injection.kind)}${left}`);
  }
  return said.filter(Boolean).join(" · ");
}

/** The newest compaction in one line. */
export function lastCompaction(report, age) {
  const last = report?.last_compaction;
  if (!last) return "";
  const when = age(last.at);
  const freed = `freed ${marked(last.freed_tokens, last.basis !== "projected")}`;
  const why = typeof last.trigger === "string" ? ` (${plain(last.trigger)})` : "";
  return `Last compaction ${freed}${ago(when, ", ")}${why}`;
}

/** What the newest compaction put in the place of how much. The summary itself is its agent's; no envelope has it. */
export function replaced(report) {
  const last = report?.last_compaction;
  if (!(Number.isInteger(last?.freed_messages) && last.freed_messages > 0)) return "";
  const messages = counted(last.freed_messages, "message");
  return last.summary_tokens > 0 ? `${messages} gave way to a summary of ~${grouped(last.summary_tokens)} tokens` : `${messages} left without a summary`;
}

/** A way to save tokens; the saving is always a projection. */
export function saving({ text, tokens_saved: tokens, impact }) {
  const cost = typeof impact === "string" ? `, ${plain(impact)} impact` : "";
  return `${text.trim().replace(/[.]$/, "")} (saves ~${grouped(tokens)}${cost})`;
}

/** The name of a part of the window. */
export const partName = (part) => PARTS[part] ?? plain(part);

/** A part's tokens. */
export const partTokens = (part) => marked(part.tokens, part.basis !== "projected");

/** The answer to a request to compact. `done` is the payload of participant/compact-done. */
export function compactAnswer(done, targetTokens) {
  if (done.skipped === true) return `Skipped: ${sentence(skippedBecause(done, targetTokens))}`;
  if (!Number.isInteger(done.freed_tokens)) return "Compacted; it did not say how much was freed.";
  const freed = `Freed ${marked(done.freed_tokens, done.basis !== "projected")} tokens`;
  const messages = Number.isInteger(done.freed_messages) ? `, ${counted(done.freed_messages, "message")}` : "";
  if (!Number.isInteger(done.tokens_after)) return `${freed}${messages}.`;
  const window = Number.isInteger(done.max_tokens) ? ` of ${grouped(done.max_tokens)}` : "";
  return `${freed}${messages}; now ~${grouped(done.tokens_after)}${window} (projected; exact after its next call).`;
}

function skippedBecause(done, targetTokens) {
  if (done.reason === "already_below_target") {
    const target = targetTokens === undefined ? "the target" : grouped(targetTokens);
    return `already below ${target}${Number.isInteger(done.tokens_before) ? ` (${grouped(done.tokens_before)})` : ""}`;
  }
  return SKIPPED[done.reason] ?? (typeof done.reason === "string" ? done.reason : "it gave no reason");
}

/** Rows of label and value for the details of a card. */
export function figures(status, age) {
  const report = status.context ?? {};
  const next = report.next_prompt_tokens;
  const nextIsExact = report.next_prompt_basis === "exact" || report.next_prompt_basis === "server_counted";
  const measured = age(report.measured_at);
  const rows = [
    ["next request", next === undefined ? undefined : `${marked(next, nextIsExact)} (${plain(report.next_prompt_basis ?? "unlabelled")})`],
    ["window", WINDOW_BASIS[report.max_tokens_basis]],
    ["messages", grouped(status.messages_in_context)],
    ["prompt", report.prompt_tokens],
    ["from cache", report.cached_tokens],
    ["completion", report.completion_tokens],
    ["reasoning", report.reasoning_tokens],
    ["per turn", report.tokens_per_turn === undefined ? undefined : `~${grouped(report.tokens_per_turn)}`],
    ["drift", report.drift_tokens],
    ["latency", status.latency_ms === undefined ? undefined : `${grouped(status.latency_ms)} ms`],
    ["measured", measured === undefined ? undefined : `${measured} ago`],
    ["compactions", report.compactions],
    ["policy", report.policy],
  ];
  return rows
    .filter(([, value]) => value !== undefined && value !== null)
    .map(([label, value]) => [label, typeof value === "number" ? grouped(value) : String(value)]);
}

/** One look at the whole board. */
export function glance(entries) {
  if (!entries.length) return "";
  const counts = [
    [entries.filter((entry) => Number(severityOf(entry.status)) >= 1).length, "near the limit"],
    [entries.filter((entry) => entry.status.status === "compacting").length, "compacting"],
    [entries.filter((entry) => basisOf(entry.status) === "unknown").length, "unknown"],
    [entries.filter((entry) => !entry.connected).length, "not connected"],
  ].filter(([count]) => count > 0);
  const all = counted(entries.length, "window");
  return `${all}${counts.length ? `: ${counts.map(([count, what]) => `${count} ${what}`).join(", ")}` : ", all healthy"}`;
}
