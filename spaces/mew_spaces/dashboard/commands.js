// Slash commands: their envelopes, the capabilities they need, and completion. Pure. The grammar is that of the terminal's chat, except
// that a command acts on the target of the composer unless it starts with a participant's name.

import { ACTIONS, invitation, MEMBERSHIP, payloadOf, ROLES } from "./actions.js";
import { maySend } from "./permissions.js";

/** Words that cannot be read; the message says what is expected. */
export class InvalidCommand extends Error {}

/** By name: the kind it sends, what it does, its words, and `typed` where they make a payload without fields. */
export const COMMANDS = {
  urgent: { kind: "chat", help: "Send a message to be read before the next step of a running turn", words: "TEXT", fields: [{ name: "text", required: true, what: "a text" }] },
  ...Object.fromEntries(Object.entries(ACTIONS).filter(([, action]) => action.words !== undefined)),
  approve: { kind: "mcp/request", help: "Go to the oldest proposal, to approve it", words: "", isDecision: true },
  reject: { kind: "mcp/reject", help: "Go to the oldest proposal, to reject it", words: "", isDecision: true },
  invite: { ...ACTIONS.invite, isNew: true, typed: (words, id) => invitation(id, words.map(known)).payload },
  call: {
    kind: "mcp/request",
    help: "Call a tool with arguments as JSON",
    words: "TOOL [JSON]",
    typed: ([name, ...words]) => {
      if (!name) throw new InvalidCommand("the name of a tool is missing");
      return { jsonrpc: "2.0", id: 1, method: "tools/call", params: { name, arguments: readObject(words.join(" ")) } };
    },
  },
};

/** Names of commands from before, and what they are called now. */
const RENAMED = new Map(Object.entries(ACTIONS).flatMap(([name, { formerly }]) => (formerly ? [[formerly, name]] : [])));

/** A role, or a kind; kinds have a slash or a star, except `chat`. */
function known(word) {
  if (Object.hasOwn(ROLES, word) || word === "chat" || /[/*]/.test(word)) return word;
  throw new InvalidCommand(`'${word}' is not one of ${Object.keys(ROLES).join(", ")}, or a kind such as mcp/proposal`);
}

/** The values of fields that typed words have. Throws `InvalidCommand`. */
function valuesOf(fields, words) {
  const [rest, values] = [[...words], {}];
  for (const { name, options, type, min = 0, required, what } of fields) {
    const isNumber = /^\d+(\.\d+)?$/.test(rest[0] ?? "") && Number(rest[0]) >= min;
    if (options) values[name] = options.includes(rest[0]) ? rest.shift() : options[0];
    else if (type === "number" && isNumber) values[name] = rest.shift();
    else if (type === "word") values[name] = rest.shift() ?? "";
    else if (type === "list" && rest.length) values[name] = rest.splice(0);
    else if (type === undefined) values[name] = rest.splice(0).join(" ");
    if (required && !values[name]) throw new InvalidCommand(`${what} is missing`);
  }
  if (rest.length) throw new InvalidCommand(fields.at(-1).type === "number" ? `'${rest[0]}' is not a number of ${fields.at(-1).label.toLowerCase()}` : `'${rest[0]}' is one word too many`);
  return values;
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
  const name = RENAMED.get(match[1]) ?? match[1];
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
  if (name === "remove" && !known.includes(named)) throw new InvalidCommand(`/${name} needs the name of a participant${named ? `, not '${named}'` : ""}.`);
  if (command.isDecision) return { command: name, was: match[1], kind: command.kind, to: [], about: known.includes(named) ? named : undefined };
  if (!to.length) throw new InvalidCommand(`/${name} needs a participant: ${command.isNew ? "type a new name" : "choose a target or type its name"}.`);
  if (to.length > 1) throw new InvalidCommand(`/${name} acts on one participant; ${to.length} are chosen.`);
  try {
    // The gateway handles changes of the membership, so there is no addressee.
    const isMembership = MEMBERSHIP.has(command.kind);
    return { command: name, was: match[1], kind: command.kind, payload: command.typed ? command.typed(words, to[0]) : payloadOf(command, valuesOf(command.fields, words), to[0]), to: isMembership ? [] : to, about: to[0] };
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
