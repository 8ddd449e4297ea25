// Slash commands: what each sends, who may use it, and completion. Pure. The grammar is that of the terminal's chat,
// except that a command acts on the target of the composer unless it starts with a participant's name.

import { ACTIONS, invitation, MEMBERSHIP, ROLES } from "./actions.js";
import { maySend } from "./permissions.js";

const reason = (words) => (words.length ? { reason: words.join(" ") } : {});
const isCount = (word) => /^\d+$/.test(word ?? "");
const numberAndReason = (key) => (words) => (isCount(words[0]) ? { [key]: Number(words[0]), ...reason(words.slice(1)) } : reason(words));

/** Words that cannot be read; the message says what is expected. */
export class InvalidCommand extends Error {}

/** By name: the kind it sends, what it does, its words, and how they and the participant it acts on become a payload. */
export const COMMANDS = {
  urgent: { kind: "chat", help: "Send a message to be read before the next step of a running turn", words: "TEXT", payload: (words) => ({ text: needed(words, "a text") }) },
  compact: { kind: "participant/compact", help: "Compact the context, to a number of tokens if given", words: "[TOKENS] [REASON]", payload: numberAndReason("target_tokens") },
  pin: { kind: "participant/pin", help: "Keep a text in every prompt", words: "TEXT", payload: (words) => ({ text: needed(words, "a text") }) },
  unpin: { kind: "participant/unpin", help: "Remove a pin by its id or text", words: "ID|TEXT", payload: (words) => ({ pin: needed(words, "the id or the text of a pin") }) },
  forget: {
    kind: "participant/forget",
    help: "Drop messages from one end of the history",
    words: "[oldest|newest] [N]",
    payload: (words) => {
      const direction = ["oldest", "newest"].includes(words[0]) ? words.shift() : "oldest";
      if (words.length && !(isCount(words[0]) && Number(words[0]) > 0)) throw new InvalidCommand(`'${words[0]}' is not a number of messages`);
      return { direction, ...(words.length ? { entries: Number(words[0]) } : {}) };
    },
  },
  clear: { kind: "participant/clear", help: "Delete the whole history except the pins", words: "[REASON]", payload: reason },
  undo: { kind: "participant/undo", help: "Undo a compaction, a forget or a clear (default: the newest)", words: "[NUMBER] [REASON]", payload: numberAndReason("number") },
  pause: { kind: "participant/pause", help: "Pause, for a number of seconds if given", words: "[SECONDS] [REASON]", payload: numberAndReason("timeout_seconds") },
  resume: { kind: "participant/resume", help: "End a pause or a stopped loop", words: "[REASON]", payload: reason },
  cancel: { kind: "reasoning/cancel", help: "Cancel the running turn", words: "[REASON]", payload: reason, needsTurn: true },
  status: { kind: "participant/request-status", help: "Request a new status", words: "", payload: () => ({}) },
  recall: { kind: "participant/recall", help: "Search what left the context", words: "WORDS", payload: (words) => ({ words: needed(words, "words to search for") }) },
  reset: { kind: "participant/restart", help: "Start again with an empty history", words: "[REASON]", payload: reason },
  grant: { kind: "capability/grant", help: "Let it send a kind; with mcp/request also one tool only", words: "KIND [TOOL]", payload: ([kind = "", tool = ""], id) => ACTIONS.grant.payload({ kind: needed(kind ? [kind] : [], "a kind such as chat"), to: "", tool }, id) },
  revoke: { kind: "capability/revoke", help: "Take a kind away", words: "KIND", payload: ([kind = ""], id) => ACTIONS.revoke.payload({ kind: needed(kind ? [kind] : [], "a kind such as chat"), others: "" }, id) },
  approve: { kind: "mcp/request", help: "Go to the oldest proposal, to approve it", words: "", isDecision: true },
  reject: { kind: "mcp/reject", help: "Go to the oldest proposal, to reject it", words: "", isDecision: true },
  invite: { kind: "space/invite", help: "Invite somebody new; the token is shown once", words: "[person|agent|tool|KIND ...]", isNew: true, payload: (words, id) => invitation(id, words.map(known)).payload },
  remove: { kind: "space/kick", help: "End a membership; the token becomes invalid", words: "NAME [REASON]", needsName: true, payload: (words, id) => ({ participant_id: id, ...reason(words) }) },
  shutdown: { kind: "participant/shutdown", help: "Stop the program", words: "[REASON]", payload: reason },
  call: {
    kind: "mcp/request",
    help: "Call a tool with arguments as JSON",
    words: "TOOL [JSON]",
    payload: (words) => {
      const name = needed(words.slice(0, 1), "the name of a tool");
      return { jsonrpc: "2.0", id: 1, method: "tools/call", params: { name, arguments: readObject(words.slice(1).join(" ")) } };
    },
  },
};

/** Names of commands from before, and what they are called now. */
const RENAMED = { restart: "reset", kick: "remove", stop: "shutdown" };

/** A role, or a kind; kinds have a slash or a star, except `chat`. */
function known(word) {
  if (Object.hasOwn(ROLES, word) || word === "chat" || /[/*]/.test(word)) return word;
  throw new InvalidCommand(`'${word}' is not one of ${Object.keys(ROLES).join(", ")}, or a kind such as mcp/proposal`);
}

function needed(words, what) {
  if (!words.length) throw new InvalidCommand(`${what} is missing`);
  return words.join(" ");
}

function readObject(text) {
  if (!text.trim()) return {};
  try {
    const value = JSON.parse(text);
    if (value && typeof value === "object" && !Array.isArray(value)) return value;
  } catch {
    // reported below
  }
  throw new InvalidCommand('the arguments must be a JSON object such as {"path": "README.md"}');
}

/** The names of the commands that these capabilities permit for a target. */
export function permitted(patterns, target) {
  return Object.keys(COMMANDS).filter((name) => maySend(patterns, COMMANDS[name].kind, target));
}

/**
 * Read a line of the composer: an envelope {kind, payload, to} and the command's name, or a chat.
 * `targets` are the chosen recipients, `known` the participants. Throws `InvalidCommand`.
 */
export function readLine(line, targets, known) {
  const match = /^\/([a-z]+)(?:\s+([\s\S]*))?$/.exec(line.trim());
  if (!match) return { kind: "chat", payload: { text: line, receipts: true }, to: recipients(line, targets, known) };
  const name = RENAMED[match[1]] ?? match[1];
  const command = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined;
  if (name === "urgent" && match[2]?.trim()) return { kind: "chat", payload: { text: match[2], receipts: true, urgent: true }, to: recipients(match[2], targets, known) };
  if (!command) throw new InvalidCommand(`Unknown command /${name}. Type / to see the commands.`);
  let words = (match[2] ?? "").trim().split(/\s+/).filter(Boolean);
  let to = targets;
  const named = words[0]?.replace(/^@/, "");
  if (named !== undefined && (command.isNew || known.includes(named))) {
    to = [named];
    words = words.slice(1);
  } else if (command.isNew) to = [];
  // A mistyped name must not remove the chosen participant.
  if (command.needsName && !known.includes(named)) throw new InvalidCommand(`/${name} needs the name of a participant${named ? `, not '${named}'` : ""}.`);
  if (command.isDecision) return { command: name, was: match[1], kind: command.kind, to: [], about: known.includes(named) ? named : undefined };
  if (!to.length) throw new InvalidCommand(`/${name} needs a participant: ${command.isNew ? "type a new name" : "choose a target or type its name"}.`);
  if (to.length > 1) throw new InvalidCommand(`/${name} acts on one participant; ${to.length} are chosen.`);
  try {
    // The gateway carries out what concerns membership; nobody is addressed.
    const isMembership = MEMBERSHIP.has(command.kind);
    return { command: name, was: match[1], kind: command.kind, payload: command.payload(words, to[0]), to: isMembership ? [] : to, about: to[0] };
  } catch (error) {
    throw error instanceof InvalidCommand ? new InvalidCommand(`/${name} ${command.words}: ${error.message}.`) : error;
  }
}

/** The participant that a line begins with, as in "@coder please"; undefined without one. */
export function addressee(line, known) {
  const name = /^@(\S+)\s/.exec(line)?.[1];
  return known.find((one) => one === name || one === name?.replace(/[,:]$/, ""));
}

/** The chosen recipients and those that the text mentions. */
function recipients(text, targets, known) {
  const mentioned = known.filter((name) => mentions(text, name));
  return [...new Set([...targets, ...mentioned])];
}

function mentions(text, name) {
  for (let at = text.indexOf(`@${name}`); at >= 0; at = text.indexOf(`@${name}`, at + 1)) {
    const before = text[at - 1];
    const after = text[at + name.length + 1];
    if ((before === undefined || /[\s(,]/.test(before)) && (after === undefined || !/[\w-]/.test(after))) return true;
  }
  return false;
}

/**
 * What completes the word before the caret: {start, options: [{text, label, help}]}; undefined without a candidate.
 */
export function complete(text, caret, { known, patterns, target }) {
  const before = text.slice(0, caret);
  const word = /(?:^|\s)([@/]?[^\s]*)$/.exec(before)?.[1] ?? "";
  const start = caret - word.length;
  let options = [];
  if (word.startsWith("/") && start === 0) {
    const names = permitted(patterns, target).filter((name) => name.startsWith(word.slice(1)));
    options = names.map((name) => ({ text: `/${name} `, label: `/${name} ${COMMANDS[name].words}`.trim(), help: COMMANDS[name].help }));
  } else if (word.startsWith("@")) {
    const wanted = word.slice(1).toLowerCase();
    const rank = (name) => (name.toLowerCase().startsWith(wanted) ? 0 : 1);
    const found = known.filter((name) => name.toLowerCase().includes(wanted)).sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
    options = found.map((name) => ({ text: `@${name} `, label: `@${name}`, help: "" }));
  }
  return options.length ? { start, options: options.slice(0, 8) } : undefined;
}
