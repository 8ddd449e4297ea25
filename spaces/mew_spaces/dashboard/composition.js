// The contents of a participant's window, part by part, and the free rest. Owns the strip and the rows; the parts of the prefix are
// requested from the participant when the user opens them, because broadcasts do not contain them.

import { make, makeText, replaceChildren } from "./dom.js";

/** Give a node the colour of a part; a part without one has that of all others. */
function colour(node, { part }) {
  node.dataset.part = part;
  if (/^[a-z_]+$/.test(part)) node.style.setProperty("--part", `var(--part-${part}, var(--part-other))`);
  return node;
}

export class Composition {
  /** `askPrefix()` resolves with the parts of the prefix, or rejects with why there are none; `mayAsk()` whether it can. */
  constructor({ askPrefix, mayAsk }) {
    this._askPrefix = askPrefix;
    this._mayAsk = mayAsk;
    this._prefix = undefined;
    this._strip = make("div", "strip");
    this._strip.setAttribute("aria-hidden", "true");
    this._rows = make("ul", "parts");
    this.nodes = [this._strip, this._rows];
  }

  /** Show the parts of a view. The parts of an open prefix are requested again if its size changed. */
  show({ parts = [], max_tokens: max }) {
    const total = max ?? parts.reduce((sum, part) => sum + part.tokens, 0);
    this._strip.replaceChildren(...parts.filter((part) => part.tokens > 0).map((part) => segment(part, total)));
    const prefix = parts.find((part) => part.part === "prefix");
    if (prefix && this._mayAsk()) this._showPrefix(prefix);
    else this._prefix = undefined;
    if (!parts.length) return this._rows.replaceChildren(make("li", "whole soft", "Unknown"));
    replaceChildren(this._rows, parts.map((part) => (part === prefix && this._prefix ? this._prefix.row : make("li", "", ...cells(part)))));
  }

  _showPrefix(part) {
    if (!this._prefix) {
      const list = make("ul", "parts");
      const summary = make("summary", "");
      const details = make("details", "", summary, list);
      details.addEventListener("toggle", () => details.open && void this._load());
      this._prefix = { row: make("li", "whole", details), details, summary, list, tokens: undefined };
    }
    const { summary, details } = this._prefix;
    summary.replaceChildren(...cells(part));
    this._prefix.now = part.tokens;
    if (details.open) void this._load();
  }

  async _load() {
    const shown = this._prefix;
    if (shown.tokens === shown.now) return;
    shown.tokens = shown.now;
    if (!shown.list.children.length) shown.list.replaceChildren(make("li", "whole soft", "Asking …"));
    try {
      const parts = await this._askPrefix();
      shown.list.replaceChildren(...parts.map((part) => make("li", "", ...cells(part))));
    } catch (error) {
      shown.tokens = undefined;
      shown.list.replaceChildren(makeText("li", "whole soft", error.message));
    }
  }
}

function segment(part, total) {
  const node = colour(make("span", "segment"), part);
  node.style.flexGrow = String(part.tokens / total);
  node.title = `${part.name}: ${part.amount} tokens`;
  return node;
}

/** Swatch, name, tokens and share of a part; the basis is the tokens' tooltip. */
function cells(part) {
  const swatch = colour(make("span", "swatch"), part);
  const amount = make("b", "", part.amount);
  amount.title = part.basis;
  const name = makeText("span", "part-name", part.name);
  name.title = name.textContent;
  return [swatch, name, amount, make("span", "soft", part.share)];
}
