// Actions of the signed-in person on a participant: labels, fields, and the envelope of each. Pure.

import ROLE_PATTERNS from "./roles.json" with { type: "json" }; // Python reads the same files
import VERBS from "./verbs.json" with { type: "json" };

/** Whether an envelope is a status. */
export const isStatus = (envelope) => envelope.kind === "participant/status";

/** What a revocation does with the rights that its recipient passed on, if they do not end. */
const KEEP = "others keep it";
const KIND = { name: "kind", label: "Kind", type: "word", required: true, value: "mcp/request", what: "a kind such as chat" };

/** What only the page has: when a button makes sense, and forms about capabilities. */
const OWN = {
  pause: { when: (line) => !line.is_paused },
  resume: { when: (line) => line.is_paused === true },
  grant: {
    fields: [KIND, { name: "tool", label: "Tool", type: "word", placeholder: "any tool" }, { name: "to", label: "To", type: "word", placeholder: "any participant" }],
    payload: ({ kind, to, tool }) => ({ capabilities: [{ kind, ...(to ? { to } : {}), ...(tool ? { payload: { method: "tools/call", params: { name: tool } } } : {}) }] }),
  },
  revoke: {
    fields: [KIND, { name: "others", label: "Passed on", options: ["ends too", KEEP] }],
    payload: ({ kind, others }) => ({ capabilities: [{ kind }], keep_passed_on: others === KEEP }),
  },
};

/**
 * By name: kind, label (without one it has no button), `is_main` shown without opening the menu, `fields` of a form and of a typed
 * line, `confirm` a question before it is sent, `isAnswer` which envelope ends it (without: the gateway's receipt does),
 * `target` the key of the payload that names the participant where the gateway carries it out.
 */
export const ACTIONS = Object.fromEntries(Object.entries(VERBS).map(([name, verb]) => [name, { ...verb, ...OWN[name], isAnswer: answers(verb) }]));

/** Which envelope ends a verb. A status ends what it has begun too: not every participant may send another answer. */
function answers({ answer, begins }) {
  const isOutcome = ({ kind, said }) => (kind === answer || Boolean(said?.text)) && said?.stage !== "begun";
  return answer && ((envelope) => (begins && isStatus(envelope) ? isOutcome(envelope) : envelope.kind === answer));
}

/** The payload of an action on a participant, from the values of its fields; empty ones are left out. */
export function payloadOf({ fields = [], payload, target }, values, id) {
  const given = fields.filter(({ name }) => values[name] !== undefined && values[name] !== "");
  const own = Object.fromEntries(given.map(({ name, type }) => [name, type === "number" ? Number(values[name]) : values[name]]));
  return { ...(payload ? payload(own) : own), ...(target ? { [target]: id } : {}) };
}

/** Actions on a participant without a context: only those that concern its program and its membership. */
const FOR_ALL = new Set(["pause", "resume", "reset", "start_program", "restart_program", "shutdown", "grant", "revoke", "remove"]);

/** Kinds that the gateway itself carries out: no participant has to be connected. */
export const MEMBERSHIP = new Set(Object.values(VERBS).filter((verb) => verb.target).map((verb) => verb.kind));

/** The names of the actions that make sense now. `maySend(kind, to)` tells what the user may send. */
export function availableActions(line, { me, hasTurn, programs }, maySend) {
  const { id, connected: isConnected, has_context: isReporting } = line;
  return Object.entries(ACTIONS).flatMap(([name, action]) => {
    if (!action.label) return [];
    const isMembership = MEMBERSHIP.has(action.kind);
    if (action.is_program && !programs[name]) return [];
    const fits = (isReporting || FOR_ALL.has(name)) && (isConnected || isMembership || action.is_program) && (id !== me || name === "grant");
    const isNow = (action.when?.(line) ?? true) && (!action.needs_turn || hasTurn);
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
  return { kind: "space/invite", payload: { participant_id: id, initial_capabilities: capabilities, several_sockets: several } };
}
