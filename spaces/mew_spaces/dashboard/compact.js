// Compact requests: sent as the signed-in participant and followed until the answer. No DOM here.

import { messageOf } from "./events.js";
import { gatewayUrl } from "./session.js";
import { compactAnswer, sentence, span } from "./text.js";

const ANSWER_TIMEOUT_MS = 180_000;

/** Create an envelope id. It is ours, because the answer may arrive before the gateway's receipt. */
function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const correlates = (envelope, id) => [envelope.correlation_id].flat().includes(id);

export class CompactRequests {
  /** Calls `onChange(participant)` whenever `stateOf(participant)` changes. */
  constructor(session, onChange) {
    this._session = session;
    this._onChange = onChange;
    this._states = new Map();
  }

  /** {isOpen, isRefusal, text} of the last request to a participant; undefined without one. */
  stateOf(participant) {
    return this._states.get(participant);
  }

  /** Ask a participant to compact. `size` is its current size as text, if known. */
  async ask(participant, targetTokens, size) {
    if (this.stateOf(participant)?.isOpen) return;
    const id = newId();
    const session = this._session;
    const text = `Compacting${size ? ` ${size} tokens` : ""} …`;
    this._set(participant, { id, isOpen: true, targetTokens, text, untilMs: Date.now() + ANSWER_TIMEOUT_MS });
    const payload = { reason: "requested on the dashboard" };
    if (targetTokens !== undefined) payload.target_tokens = targetTokens;
    const path = `participants/${encodeURIComponent(session.participant)}/messages`;
    try {
      const response = await fetch(gatewayUrl(path, { space: session.space }), {
        method: "POST",
        headers: { Authorization: `Bearer ${session.token}`, "Content-Type": "application/json" },
        body: JSON.stringify({ id, kind: "participant/compact", to: [participant], payload }),
      });
      if (!response.ok) this._end(participant, id, `Refused: ${sentence(await messageOf(response))}`, true);
    } catch {
      this._end(participant, id, "Not sent: the gateway is unreachable.", true);
    }
  }

  /** Finish a request if an envelope answers it. */
  receive(envelope) {
    const state = this.stateOf(envelope.from);
    if (!state?.isOpen || !correlates(envelope, state.id)) return;
    if (envelope.kind === "participant/compact-done") {
      const done = envelope.payload ?? {};
      this._end(envelope.from, state.id, compactAnswer(done, state.targetTokens), done.skipped === true);
    } else if (envelope.kind === "participant/status" && String(envelope.payload?.status).startsWith("refused:")) {
      this._end(envelope.from, state.id, `Refused: ${sentence(envelope.payload.status.slice(8))}`, true);
    }
  }

  /** End the open request to a participant that left. */
  left(participant) {
    const state = this.stateOf(participant);
    if (state?.isOpen) this._end(participant, state.id, "Disconnected before it answered.", true);
  }

  /** End requests that have waited too long. */
  expire(nowMs) {
    for (const [participant, state] of this._states) {
      if (state.isOpen && nowMs >= state.untilMs) {
        this._end(participant, state.id, `No answer for ${span(ANSWER_TIMEOUT_MS)}. The agent may still compact.`, true);
      }
    }
  }

  _end(participant, id, text, isRefusal) {
    if (this.stateOf(participant)?.id === id) this._set(participant, { id, isOpen: false, isRefusal, text });
  }

  _set(participant, state) {
    this._states.set(participant, state);
    this._onChange(participant);
  }
}
