// A status as a type: a word, and the detail that may follow a colon. Pure. The words and their marks are those of Python.

import WORDS from "./words.json" with { type: "json" };

/** Read a status: its word, its detail, and whether the word has one of some marks. */
export function parseStatus(status) {
  const text = typeof status === "string" ? status : "";
  const colon = text.indexOf(":");
  const word = colon < 0 ? text : text.slice(0, colon);
  const marks = (Object.hasOwn(WORDS.statuses, word) && WORDS.statuses[word].marks) || [];
  return { word, detail: colon < 0 ? "" : text.slice(colon + 1).trim(), has: (...names) => names.some((name) => marks.includes(name)) };
}
