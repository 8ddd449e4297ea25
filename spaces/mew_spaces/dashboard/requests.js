// Envelopes of the signed-in participant, and their answers. No DOM here. Nothing counts as done before its answer arrives.

import { messageOf } from "./events.js";
import { gatewayUrl } from "./session.js";
import { answered, sentence, span, wholeSentence } from "./text.js";

const ANSWER_TIMEOUT_MS = 180_000;
const FETCH_TIMEOUT_MS = 30_000;
export const START_TIMEOUT_MS = 120_000; // programs join, or end, within this time

/** A request that was refused or not answered; the message is a sentence for people. */
export class Refused extends Error {}

/** Create an envelope id. It is ours, because the answer may arrive before the gateway's receipt. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class Requests {
  constructor(session) {
    this._session = session;
    this._open = new Map();
  }

  /** Read a JSON document of the gateway. Throws `Refused`. */
  async read(path, query = {}) {
    return this._fetch(gatewayUrl(path, query), { method: "GET" });
  }

  /** Send a JSON document to a route of the gateway; resolves with its answer. Throws `Refused`. */
  async post(path, body, timeoutMs) {
    return this._fetch(gatewayUrl(path), { method: "POST", body: JSON.stringify(body) }, timeoutMs);
  }

  /** Start a participant's program, again if it runs; resolves with what came of it. Throws `Refused`, also if it did not join. */
  async restartProgram(id) {
    const path = `spaces/${encodeURIComponent(this._session.space)}/programs/${encodeURIComponent(id)}/restart`;
    const { done, text } = await this.post(path, {}, START_TIMEOUT_MS);
    if (!done) throw new Refused(wholeSentence(text));
    return wholeSentence(text);
  }

  /** Send an envelope; resolves with the gateway's receipt. Throws `Refused`. */
  async send(envelope) {
    const { space, participant } = this._session;
    const url = gatewayUrl(`participants/${encodeURIComponent(participant)}/messages`, { space });
    return this._fetch(url, { method: "POST", body: JSON.stringify({ id: newId(), ...envelope }) });
  }

  /**
   * Send an envelope to one participant and resolve with the first envelope that `isAnswer` accepts and that refers to
   * it; `onAccepted` is called when the gateway has accepted it. Throws `Refused` if the gateway or the participant refuses, the participant leaves, or it does not answer.
   */
  async ask(envelope, isAnswer, { timeoutMs = ANSWER_TIMEOUT_MS, onAccepted } = {}) {
    const id = newId();
    const answered = new Promise((resolve, reject) => {
      const timer = setTimeout(() => this._end(id, () => reject(new Refused(`No answer after ${span(timeoutMs)}. It may still arrive.`))), timeoutMs);
      this._open.set(id, { to: envelope.to[0], isAnswer, resolve, reject, timer });
    });
    answered.catch(() => undefined); // the send may fail before this is awaited
    try {
      await this.send({ ...envelope, id });
      onAccepted?.();
    } catch (error) {
      this._end(id, () => undefined);
      throw error;
    }
    return answered;
  }

  /** Ask a participant what became of a chat {id, from} there; resolves with its receipt in words. Throws `Refused`. */
  async receiptOf({ id, from }, participant) {
    const question = { kind: "participant/request-receipts", to: [participant], payload: { ids: [id], sender: from } };
    const answer = await this.ask(question, (one) => one.kind === "participant/receipts", { timeoutMs: FETCH_TIMEOUT_MS });
    const receipt = answer.said?.receipts?.[0];
    if (!receipt) throw new Refused(`${participant} sent no receipt.`);
    return receipt;
  }

  /** Finish requests that an envelope answers. */
  receive(envelope) {
    if (!this._open.size) return;
    if (envelope.kind === "system/presence" && envelope.payload?.event === "leave") {
      for (const [id, one] of this._open) {
        if (one.to === envelope.payload.participant?.id) this._end(id, () => one.reject(new Refused("Disconnected before it answered.")));
      }
    }
    for (const id of [envelope.correlation_id ?? []].flat()) {
      const one = this._open.get(id);
      if (!one || envelope.from !== one.to) continue;
      const isRefusal = envelope.kind === "participant/status" && envelope.said?.stage === "problem";
      if (isRefusal) this._end(id, () => one.reject(new Refused(answered(envelope))));
      else if (one.isAnswer(envelope)) this._end(id, () => one.resolve(envelope));
    }
  }

  close() {
    for (const id of [...this._open.keys()]) this._end(id, () => undefined);
  }

  _end(id, finish) {
    const one = this._open.get(id);
    if (!one) return;
    clearTimeout(one.timer);
    this._open.delete(id);
    finish();
  }

  async _fetch(url, options, timeoutMs = FETCH_TIMEOUT_MS) {
    let response;
    try {
      const headers = { Authorization: `Bearer ${this._session.token}`, "Content-Type": "application/json" };
      response = await fetch(url, { ...options, headers, cache: "no-store", signal: AbortSignal.timeout(timeoutMs) });
    } catch (error) {
      const isRead = options.method === "GET"; // of anything else, only the receipt may be lost
      const unreachable = isRead ? "The gateway is unreachable." : "No answer from the gateway; it may have got this.";
      throw new Refused(error.name === "TimeoutError" ? `No answer after ${span(timeoutMs)}.` : unreachable);
    }
    if (!response.ok) throw new Refused(`Refused: ${sentence(await messageOf(response))}`);
    return response.json();
  }
}
