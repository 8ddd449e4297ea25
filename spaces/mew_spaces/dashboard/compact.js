// Requests to compact: sent in the viewer's name, followed until their answer. No page here.

import { messageOf } from "./events.js";
import { gatewayUrl } from "./session.js";
import { compactAnswer, sentence, span } from "./words.js";

const PATIENCE_MS = 180_000;

/** An id for an envelope. The answer may come before the gateway's receipt does, so the id is ours. */
function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const correlates = (envelope, id) => [envelope.correlation_id].flat().includes(id);

export class CompactRequests {
  /** `onChange(participant)` whenever `stateOf(participant)` is another one. */
  constructor(session, onChange) {
    this._session = session;
    this._onChange = onChange;
    this._states = new Map();
  }

  /** {isOpen, isRefusal, text} of the newest request to a participant; undefined when there was none. */
  stateOf(participant) {
    return this._states.get(participant);
  }

  /** Ask a participant to compact. `sizeWords` says how much it holds now, if that is known. */
  async ask(participant, targetTokens, sizeWords) {
    if (this.stateOf(participant)?.isOpen) return;
    const id = newId();
    const session = this._session;
    const text = `Compacting${sizeWords ? ` ${sizeWords} tokens` : ""} …`;
    this._set(participant, { id, isOpen: true, targetTokens, text, untilMs: Date.now() + PATIENCE_MS });
    const payload = { reason: "asked for on the dashboard" };
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
      this._end(participant, id, "Not sent: the gateway cannot be reached.", true);
    }
  }

  /** Look whether an envelope answers a request. */
  hear(envelope) {
    const state = this.stateOf(envelope.from);
    if (!state?.isOpen || !correlates(envelope, state.id)) return;
    if (envelope.kind === "participant/compact-done") {
      const done = envelope.payload ?? {};
      this._end(envelope.from, state.id, compactAnswer(done, state.targetTokens), done.skipped === true);
    } else if (envelope.kind === "participant/status" && String(envelope.payload?.status).startsWith("refused:")) {
      this._end(envelope.from, state.id, `Refused: ${sentence(envelope.payload.status.slice(8))}`, true);
    }
  }

  /** Somebody left: what was asked of them will not be answered. */
  left(participant) {
    const state = this.stateOf(participant);
    if (state?.isOpen) this._end(participant, state.id, "It left before it answered.", true);
  }

  /** Stop waiting where it took too long. */
  expire(nowMs) {
    for (const [participant, state] of this._states) {
      if (state.isOpen && nowMs >= state.untilMs) {
        this._end(participant, state.id, `No answer for ${span(PATIENCE_MS)}; one may still change the figures.`, true);
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
