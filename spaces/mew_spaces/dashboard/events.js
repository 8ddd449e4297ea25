// Server-sent events with fetch, because EventSource cannot send the token in a header. Resumes after a reconnect.

const MIN_RETRY_MS = 500;
const MAX_RETRY_MS = 5_000; // a gateway restarts within seconds
const SILENCE_TIMEOUT_MS = 45_000; // three of the gateway's keep-alive intervals
const MAX_PENDING_CHARS = 32 * 1024 * 1024;
const EARLIER_ENVELOPES = 500; // the newest ones before the page was opened
const WORTH_PROGRESS = 200; // fewer missed events arrive at once
const FINAL_STATUSES = new Set([401, 403, 404]);

/** Parses an event stream into events {id, name, data}. */
export class EventParser {
  constructor() {
    this._pending = []; // pieces of an incomplete line, so that none is searched twice
    this._pendingChars = 0;
    this._endedInReturn = false;
    this._reset();
  }

  /** Add text; returns the events that it completes. */
  feed(text) {
    const lines = (this._endedInReturn && text.startsWith("\n") ? text.slice(1) : text).split(/\r\n|\n|\r/);
    if (text) this._endedInReturn = text.endsWith("\r");
    const rest = lines.pop();
    if (lines.length) {
      lines[0] = this._pending.join("") + lines[0];
      this._pending = [];
      this._pendingChars = 0;
    }
    this._pending.push(rest);
    this._pendingChars += rest.length;
    if (this._pendingChars > MAX_PENDING_CHARS) throw new Error("an event is too large");
    return lines.map((line) => this._line(line)).filter(Boolean);
  }

  _reset() {
    this._event = { id: undefined, name: "message", data: [] };
  }

  _line(line) {
    if (line === "") {
      const { id, name, data } = this._event;
      this._reset();
      return data.length ? { id, name, data: data.join("\n") } : undefined;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") this._event.data.push(value);
    else if (field === "event") this._event.name = value;
    else if (field === "id") this._event.id = value;
    return undefined;
  }
}

export class EventFeed {
  /**
   * Calls `onEvent(name, value, id)` for each event, and `onState(state, detail)`: connecting, live {behind}, waiting {untilMs},
   * refused {message}. `behind` is {done, total} while what was missed arrives. */
  constructor(url, token, { onEvent, onState }) {
    this._url = url;
    this._token = token;
    this._onEvent = onEvent;
    this._onState = onState;
    this._lastId = undefined;
    this._waitMs = MIN_RETRY_MS;
    this._stopped = false;
    this._abort = undefined;
    this._wake = undefined;
    this._heardMs = Infinity; // when the connection last gave something
  }

  /** Read until stopped or refused. */
  async run() {
    while (!this._stopped) {
      this._onState("connecting");
      try {
        if (await this._readOnce()) return;
      } catch (error) {
        if (this._stopped) return;
        if (!(error instanceof TypeError || error.name === "AbortError")) console.warn("event stream:", error.message);
      }
      if (!this._stopped) await this._pause();
    }
  }

  stop() {
    this._stopped = true;
    this._abort?.abort();
    this._wake?.();
  }

  /** Reconnect now instead of waiting. */
  retryNow() {
    this._waitMs = MIN_RETRY_MS;
    this._wake?.();
  }

  /** Follow one connection to its end. True if the gateway refused and retrying is pointless. */
  async _readOnce() {
    const url = new URL(this._url);
    if (this._lastId) url.searchParams.set("since", this._lastId);
    else url.searchParams.set("last", String(EARLIER_ENVELOPES));
    url.searchParams.set("frames", "1");
    url.searchParams.set("view", "1");
    this._abort = new AbortController();
    const headers = { Authorization: `Bearer ${this._token}`, Accept: "text/event-stream" };
    this._watch();
    try {
      const response = await fetch(url, { headers, signal: this._abort.signal, cache: "no-store" });
      if (FINAL_STATUSES.has(response.status)) {
        this._onState("refused", { message: await messageOf(response) });
        return true;
      }
      if (!response.ok) throw new Error(`the gateway answered ${response.status}`);
      this._behind = missed(this._lastId, response.headers.get("mew-position"));
      this._onState("live", this._progress(this._lastId));
      await this._read(response.body);
    } finally {
      clearTimeout(this._silence);
      this._heardMs = Infinity;
    }
    return false;
  }

  /** Give up a silent connection. Called often, because timers stand still while a computer sleeps. */
  endIfSilent() {
    if (Date.now() - this._heardMs > SILENCE_TIMEOUT_MS) this._abort.abort();
  }

  /** Give up the connection unless this is called again in time. */
  _watch() {
    this._heardMs = Date.now();
    clearTimeout(this._silence);
    this._silence = setTimeout(() => this._abort.abort(), SILENCE_TIMEOUT_MS);
  }

  async _read(body) {
    const parser = new EventParser();
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done || this._stopped) return;
      this._watch();
      this._waitMs = MIN_RETRY_MS;
      for (const event of parser.feed(value)) {
        this._handle(event);
        // Events before the first view are the past; until the view arrives, a reconnect must begin again.
        if (event.id && (this._lastId || event.name === "view")) this._lastId = event.id;
        if (event.id && this._behind) this._onState("live", this._progress(event.id));
      }
    }
  }

  /** How far an event is in what was missed; nothing once all of it has arrived. */
  _progress(id) {
    const one = this._behind;
    if (!one) return {};
    const done = sequenceOf(id) - one.from;
    if (done < one.total) return { behind: { done, total: one.total } };
    this._behind = undefined;
    return {};
  }

  /** Pass an event on. One that cannot be handled must not end the feed, which would read it again and again. */
  _handle({ id, name, data }) {
    try {
      this._onEvent(name, JSON.parse(data), id);
    } catch (error) {
      console.warn("event ignored:", error);
    }
  }

  async _pause() {
    const waitMs = this._waitMs * (0.75 + Math.random() / 2); // jitter, so that readers do not all reconnect at once
    this._waitMs = Math.min(2 * this._waitMs, MAX_RETRY_MS);
    this._onState("waiting", { untilMs: Date.now() + waitMs });
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, waitMs);
      this._wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this._wake = undefined;
  }
}

const sequenceOf = (id) => Number(id.slice(id.lastIndexOf("-") + 1));
const epochOf = (id) => id.slice(0, id.lastIndexOf("-"));

/** What a reader at one position missed of a log at another: {from, total}; undefined for little, or of another log. */
function missed(id, newest) {
  if (!id || !newest || epochOf(id) !== epochOf(newest)) return undefined;
  const total = sequenceOf(newest) - sequenceOf(id);
  return total >= WORTH_PROGRESS ? { from: sequenceOf(id), total } : undefined;
}

/** The error message of a response. */
export async function messageOf(response) {
  try {
    const { message, error } = await response.json();
    return String(message ?? error);
  } catch {
    return `the gateway answered ${response.status}`;
  }
}
