// The log of a participant's program, read from the gateway that runs it. Owns the time of reading and the look; the gateway removes
// secrets.

import { make, setText } from "./dom.js";

const LINES = 200;

export class ProgramLog {
  /** `read(lines)` resolves with the last lines, or rejects with a reason; `id` is the participant. */
  constructor(id, read) {
    this._read = read;
    this._text = make("pre", "program-log");
    this._text.tabIndex = 0;
    this._text.setAttribute("aria-label", `Output of the program of ${id}`);
    this._text.hidden = true;
    this._note = make("p", "soft");
    this._note.setAttribute("role", "status");
    this._hint = make("p", "soft", "In a terminal: ", make("code", "", `mew logs ${id} --follow`));
    const refresh = make("button", "quiet", "Refresh");
    refresh.addEventListener("click", () => void this.load());
    this.node = make("div", "program", make("h4", "", "Output of its program ", refresh), this._note, this._text, this._hint);
  }

  /** Read the log again, and show its end. */
  async load() {
    const wasAtEnd = this._text.hidden || this._text.scrollHeight - this._text.scrollTop - this._text.clientHeight < 40;
    try {
      const lines = await this._read(LINES);
      setText(this._note, lines.length ? "" : "No output since it was started.");
      setText(this._text, lines.join("\n"));
      this._text.hidden = !lines.length;
      if (wasAtEnd) this._text.scrollTop = this._text.scrollHeight;
    } catch (error) {
      setText(this._note, error.message);
    }
    this._note.hidden = !this._note.textContent;
  }
}
