// What the signed-in person can do with a participant: labels, fields, and the envelope that each sends. Pure.

import ROLE_PATTERNS from "./roles.json" with { type: "json" }; // Python reads the same file
import { parseStatus } from "./status.js";

export const isStatus = (envelope) => envelope.kind === "participant/status" && !parseStatus(envelope.payload?.status).has("begun");
const withReason = ({ reason }) => (reason ? { reason } : {});
const REASON = { name: "reason", label: "Reason", placeholder: "optional" };

/** What a revocation does with the rights that its recipient passed on, if they do not end. */
const KEEP = "others keep it";

/**
 * By name: label, kind; fields of a form; `confirm` a question before it is sent; `payload(values)`; `isAnswer` which
 * envelope ends it (without: the gateway's receipt does); `isMain` shown without opening the menu; `isProgram` done by
 * the gateway, which sends no envelope.
 */
export const ACTIONS = {
  compact: {
    label: "Compact",
    kind: "participant/compact",
    isMain: true,
    fields: [{ name: "target_tokens", label: "Target", type: "number", placeholder: "tokens, optional" }, REASON],
    payload: (values) => ({ reason: values.reason || "requested on the dashboard", ...(values.target_tokens === "" ? {} : { target_tokens: Number(values.target_tokens) }) }),
    isAnswer: (envelope) => envelope.kind === "participant/compact-done",
  },
  pin: {
    label: "Pin",
    kind: "participant/pin",
    isMain: true,
    fields: [{ name: "text", label: "Text in every prompt", required: true, isLong: true }],
    payload: ({ text }) => ({ text }),
    isAnswer: isStatus,
  },
  pause: {
    label: "Pause",
    kind: "participant/pause",
    isMain: true,
    when: (word) => word !== "paused",
    fields: [{ name: "timeout_seconds", label: "For", type: "number", placeholder: "seconds, optional" }, REASON],
    payload: (values) => ({ ...withReason(values), ...(values.timeout_seconds === "" ? {} : { timeout_seconds: Number(values.timeout_seconds) }) }),
    isAnswer: isStatus,
  },
  resume: { label: "Resume", kind: "participant/resume", isMain: true, when: (word) => word === "paused", payload: () => ({}), isAnswer: isStatus },
  cancel: { label: "Cancel turn", kind: "reasoning/cancel", isMain: true, needsTurn: true, payload: () => ({ reason: "cancelled on the dashboard" }) },
  forget: {
    label: "Forget",
    kind: "participant/forget",
    fields: [
      { name: "direction", label: "Which", options: ["oldest", "newest"] },
      { name: "entries", label: "Messages", type: "number", placeholder: "half of them" },
    ],
    payload: ({ direction, entries }) => ({ direction, ...(entries === "" ? {} : { entries: Number(entries) }) }),
    isAnswer: isStatus,
  },
  clear: { label: "Clear", kind: "participant/clear", confirm: (id) => `Delete the whole history of ${id}? Pins stay.`, payload: withReason, fields: [REASON], isAnswer: isStatus },
  undo: {
    label: "Undo",
    kind: "participant/undo",
    fields: [{ name: "number", label: "Entry", type: "number", placeholder: "the newest" }],
    payload: ({ number }) => (number === "" ? {} : { number: Number(number) }),
    isAnswer: (envelope) => envelope.kind === "participant/undo-done",
  },
  reset: { label: "Reset", kind: "participant/restart", confirm: (id) => `Reset ${id}? It starts again with an empty history.`, payload: withReason, fields: [REASON], isAnswer: isStatus },
  start_program: { label: "Start program", kind: "program/restart", isMain: true, isProgram: true },
  restart_program: {
    label: "Restart program",
    kind: "program/restart",
    isProgram: true,
    confirm: (id) => `Restart the program of ${id}? It starts with the current settings of space.yaml and continues its stored session.`,
  },
  shutdown: { label: "Shut down", kind: "participant/shutdown", confirm: (id) => `Shut ${id} down? It leaves the space.`, payload: withReason, fields: [REASON], isAnswer: isStatus },
  grant: {
    label: "Grant",
    kind: "capability/grant",
    fields: [
      { name: "kind", label: "Kind", required: true, value: "mcp/request" },
      { name: "to", label: "To", placeholder: "any participant" },
      { name: "tool", label: "Tool", placeholder: "any tool" },
    ],
    payload: ({ kind, to, tool }, id) => {
      const pattern = { kind, ...(to ? { to } : {}), ...(tool ? { payload: { method: "tools/call", params: { name: tool } } } : {}) };
      return { recipient: id, capabilities: [pattern], reason: "granted on the dashboard" };
    },
  },
  revoke: {
    label: "Revoke",
    kind: "capability/revoke",
    fields: [
      { name: "kind", label: "Kind", required: true, value: "mcp/request" },
      { name: "others", label: "Passed on", options: ["ends too", KEEP] },
    ],
    payload: ({ kind, others }, id) => ({ recipient: id, capabilities: [{ kind }], keep_passed_on: others === KEEP, reason: "revoked on the dashboard" }),
  },
  remove: { label: "Remove", kind: "space/kick", confirm: (id) => `Remove ${id} from the space? Its token becomes invalid.`, fields: [REASON], payload: (values, id) => ({ participant_id: id, ...withReason(values) }) },
};

/** Actions on a participant without a context: only those that concern its program and its membership. */
const FOR_ALL = new Set(["pause", "resume", "reset", "start_program", "restart_program", "shutdown", "grant", "revoke", "remove"]);

/** Kinds that the gateway itself carries out: no participant has to be connected. */
export const MEMBERSHIP = new Set(["capability/grant", "capability/revoke", "space/invite", "space/kick"]);

/** The names of the actions that make sense now. `maySend(kind, to)` tells what the user may send. */
export function availableActions({ id, me, isReporting, isConnected, word, hasTurn, programs }, maySend) {
  return Object.entries(ACTIONS).flatMap(([name, action]) => {
    const isMembership = MEMBERSHIP.has(action.kind);
    if (action.isProgram && !programs[name]) return [];
    const fits = (isReporting || FOR_ALL.has(name)) && (isConnected || isMembership || action.isProgram) && (id !== me || name === "grant");
    const isNow = (action.when?.(word) ?? true) && (!action.needsTurn || hasTurn);
    return fits && isNow && maySend(action.kind, isMembership ? undefined : id) ? [name] : [];
  });
}

/** The labels of the roles that a new participant may have. */
export const ROLES = { person: "person", agent: "agent", tool: "tool server" };

/** The envelope that adds a participant. `words` are roles and kinds that it may send (default: a person). */
export function invitation(id, words) {
  const roles = words.length ? words.filter((word) => Object.hasOwn(ROLES, word)) : ["person"];
  const patterns = words.filter((word) => !roles.includes(word)).map((kind) => ({ kind }));
  const capabilities = [...roles.flatMap((role) => ROLE_PATTERNS[role]), ...patterns];
  const several = roles.every((role) => role === "person");
  return { kind: "space/invite", payload: { participant_id: id, initial_capabilities: capabilities, several_sockets: several, reason: "added on the dashboard" } };
}
