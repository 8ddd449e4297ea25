// Read receipts as text: the mark at a message, one line, and the story of a message. Pure. The lines are those of `mew
// receipt`, and Python reads the same words.

import WORDS from "./words.json" with { type: "json" };
import { parseTime } from "./board.js";
import { clock, plain } from "./text.js";

const { receipt_forms: FORMS, receipt_changes: CHANGES } = WORDS;
const MAX_STEPS = 100; // the newest stay
const wordsOf = (table, form) => (Object.hasOwn(table, form) ? table[form] : undefined);

/** What a receiver said of a chat: that its model read it, in which call and what is left of it, or its status. */
export function mark({ by, status, call, form }) {
  if (call === undefined) return `${by}: ${plain(status)}`;
  const change = wordsOf(CHANGES, form);
  return `✓ read by ${by} in call ${call}${change ? `, ${change}` : ""}`;
}

/** A receipt, with what the context holds of the message. */
export function line(receipt) {
  const form = receipt.state === "stored" ? "" : formOf(receipt);
  return `${stateOf(receipt)}${form ? `; ${form}` : ""}`;
}

/** Each step in the life of a message as [time, words], oldest first. The time is "?" if it is not known. */
export function story(receipt) {
  const steps = Array.isArray(receipt.history) ? receipt.history.filter((step) => typeof step?.what === "string") : [];
  return steps.slice(-MAX_STEPS).map((step) => {
    const ms = parseTime(step.at ?? "");
    const call = step.call == null ? "" : ` ${step.call}`;
    const change = step.compaction == null ? "" : ` (${step.trigger} ${step.compaction})`;
    return [Number.isNaN(ms) ? "?" : clock(ms), `${plain(step.what)}${call}${change}`];
  });
}

function stateOf({ participant, state, call, place, reason }) {
  if (call) return `read by ${participant} in call ${call.number}`;
  return `${participant}: ${plain(state)}${place == null ? "" : `, place ${place}`}${reason == null ? "" : `: ${reason}`}`;
}

function formOf({ participant, in_context: form, compaction, summary, call, reason }) {
  const words = wordsOf(FORMS, form)?.replace("{participant}", () => participant);
  if (form === "summary") return `${words}${compaction == null ? "" : ` of compaction ${compaction}`}, ${summary}`;
  return `${words}${form === "unknown" && call && reason ? ` (${reason})` : ""}`;
}
