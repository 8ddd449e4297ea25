// The composer: text, target, completion and history. Owns the input; `commands` parses a line, and the page sends it.

import { addressee, complete, InvalidCommand, readLine } from "./commands.js";
import { byId, make, makeOption, makeText, setText, setTextOrHide } from "./dom.js";
import { newId } from "./requests.js";
import { store, stored } from "./session.js";

const COMPOSING = 229; // the key code of the Enter that ends a composition in Safari
const MAX_HISTORY = 100;
const HISTORY_KEY = "mew.typed";

export class Composer {
  /** `context()` gives {known, patterns}; `send(line)` resolves with an answer in words or undefined, or rejects. */
  constructor({ context, send }) {
    this._context = context;
    this._send = send;
    this._form = byId("composer");
    this._input = byId("composer-text");
    this._target = byId("composer-target");
    this._options = byId("composer-options");
    const typed = stored(HISTORY_KEY);
    this._history = Array.isArray(typed) ? typed.filter((one) => typeof one === "string") : [];
    this._at = this._history.length;
    this._draft = "";
    this._completion = undefined;
    this._isChosen = false; // true if the user chose the recipient
    this._isSending = false;
    this._isDue = false; // Enter was pressed while the previous line was being sent
    this._events = new AbortController();
    const { signal } = this._events;
    this._form.addEventListener("submit", (event) => (event.preventDefault(), void this._submit()), { signal });
    this._input.addEventListener("keydown", (event) => this._key(event), { signal });
    this._input.addEventListener("input", () => (this._forgetProblem(), this._typed()), { signal });
    this._target.addEventListener("change", () => ((this._isChosen = true), this._forgetProblem()), { signal });
    this._input.addEventListener("blur", () => this._close(), { signal });
    this._options.addEventListener("pointerdown", (event) => this._pick(event), { signal });
    this._typed();
    this.say(undefined);
  }

  close() {
    this.say(undefined); // it may have a token
    this._events.abort();
    this._input.value = "";
    this._target.replaceChildren();
  }

  /** The chosen recipient, undefined for everyone. */
  get target() {
    return this._target.value || undefined;
  }

  focus() {
    this._input.focus();
  }

  /** Offer these participants as targets, and keep the chosen one. */
  offer(ids) {
    const key = ids.join("\n");
    if (this._offered === key) return;
    this._offered = key;
    const chosen = this._target.value;
    this._target.replaceChildren(...[["", "everyone"], ...ids.map((id) => [id, id])].map(makeOption));
    this._target.value = ids.includes(chosen) ? chosen : "";
  }

  choose(id) {
    if (![...this._target.options].some((option) => option.value === (id ?? ""))) return;
    this._target.value = id ?? "";
    this._isChosen = true;
  }

  /** Choose a recipient for a user who has neither chosen one nor typed anything. */
  suggest(id) {
    if (this._isChosen || this._input.value) return;
    this.choose(id);
    this._isChosen = false;
  }

  /** Show an answer or a problem below the input. */
  say(words, isProblem = false) {
    if (this._events.signal.aborted) return;
    const line = byId("composer-answer");
    setTextOrHide(line, words);
    line.dataset.problem = String(isProblem);
  }

  /** What was wrong with the line before is no longer true of this one. */
  _forgetProblem() {
    if (byId("composer-answer").dataset.problem === "true") this.say(undefined);
  }

  async _submit() {
    const typed = this._input.value;
    if (!typed.trim()) return;
    if (this._isSending) return void (this._isDue = true);
    const { known } = this._context();
    let line;
    try {
      line = readLine(typed, this.target === undefined ? [] : [this.target], known);
    } catch (error) {
      if (!(error instanceof InvalidCommand)) throw error;
      return this.say(error.message, true);
    }
    const key = JSON.stringify(line);
    line.id = this._unsure?.key === key ? this._unsure.id : newId();
    this._take(typed);
    this._setSending(true);
    this.say(line.command ? `Waiting for ${line.to[0] ?? "the gateway"} …` : undefined);
    let isAccepted = false;
    const accept = () => {
      isAccepted = true;
      this._setSending(false);
    };
    try {
      this.say(await this._send(line, accept));
      if (!isAccepted) accept();
    } catch (error) {
      if (this._events.signal.aborted) return;
      if (!isAccepted) {
        this._unsure = { key, id: line.id }; // sent again unchanged, it arrives once
        this._giveBack(typed);
      }
      this.say(error.message, true);
    }
  }

  /** The input is free for the next line while this one is on its way. */
  _take(typed) {
    this._input.value = "";
    this._history = [...this._history.filter((one) => one !== typed), typed].slice(-MAX_HISTORY);
    this._at = this._history.length;
    store(this._history, HISTORY_KEY);
    this._typed();
  }

  /** What was not accepted stands in the input again, before what was typed since, and nothing more is sent. */
  _giveBack(typed) {
    const since = this._input.value;
    this._input.value = since ? `${typed}\n${since}` : typed;
    this._isDue = false;
    this._setSending(false);
    this._typed();
  }

  _setSending(isSending) {
    this._isSending = isSending;
    byId("composer-send").setAttribute("aria-disabled", String(isSending));
    setText(byId("composer-send"), isSending ? "Sending …" : "Send");
    if (isSending || !this._isDue) return;
    this._isDue = false;
    void this._submit();
  }

  _typed() {
    this._input.style.height = "auto";
    this._input.style.height = `${Math.min(this._input.scrollHeight + 2, 220)}px`;
    const { known, patterns } = this._context();
    const named = addressee(this._input.value, known);
    if (named !== undefined) this.choose(named);
    const found = document.activeElement === this._input ? complete(this._input.value, this._input.selectionStart, { known, patterns, target: this.target }) : undefined;
    if (found) this._open(found);
    else this._close();
  }

  _open(completion) {
    this._completion = { ...completion, at: 0 };
    this._options.replaceChildren(
      ...completion.options.map((one, index) => {
        const node = make("li", "", makeText("b", "", one.label), makeText("span", "soft", one.help));
        node.role = "option";
        node.id = `option-${index}`;
        node.dataset.index = String(index);
        return node;
      }),
    );
    this._options.hidden = false;
    this._mark(0);
  }

  _mark(at) {
    const { options } = this._completion;
    this._completion.at = (at + options.length) % options.length;
    [...this._options.children].forEach((node, index) => node.setAttribute("aria-selected", String(index === this._completion.at)));
    this._input.setAttribute("aria-activedescendant", `option-${this._completion.at}`);
  }

  _close() {
    this._completion = undefined;
    this._options.hidden = true;
    this._input.removeAttribute("aria-activedescendant");
  }

  _pick(event) {
    const index = event.target.closest("[role=option]")?.dataset.index;
    if (index === undefined) return;
    event.preventDefault();
    this._mark(Number(index));
    this._accept();
  }

  _accept() {
    const { start, options, at } = this._completion;
    const caret = this._input.selectionStart;
    this._input.setRangeText(options[at].text, start, caret, "end");
    this._close();
    this._typed();
  }

  _key(event) {
    if (event.isComposing || event.keyCode === COMPOSING) return;
    if (this._completion) {
      const { start, options, at } = this._completion;
      const isWhole = this._input.value.slice(start).trimEnd() === options[at].text.trimEnd();
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        event.preventDefault();
        return this._mark(at + (event.key === "ArrowDown" ? 1 : -1));
      }
      if (event.key === "Escape") {
        event.preventDefault();
        event.stopPropagation();
        return this._close();
      }
      if (event.key === "Tab" || (event.key === "Enter" && !event.shiftKey && !isWhole)) {
        event.preventDefault();
        return this._accept();
      }
    }
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      this._form.requestSubmit();
    } else if (event.key === "ArrowUp" && this._isFirstLine()) this._recall(event, -1);
    else if (event.key === "ArrowDown" && this._isLastLine()) this._recall(event, 1);
  }

  _isFirstLine() {
    return !this._input.value.slice(0, this._input.selectionStart).includes("\n");
  }

  _isLastLine() {
    return !this._input.value.slice(this._input.selectionEnd).includes("\n");
  }

  _recall(event, step) {
    const next = this._at + step;
    if (next < 0 || next > this._history.length) return;
    event.preventDefault();
    if (this._at === this._history.length) this._draft = this._input.value;
    this._at = next;
    this._input.value = this._history[next] ?? this._draft;
    this._input.setSelectionRange(this._input.value.length, this._input.value.length);
    this._input.style.height = "auto";
    this._input.style.height = `${Math.min(this._input.scrollHeight + 2, 220)}px`;
    this._close();
  }
}
