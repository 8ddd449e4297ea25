// A bar with words for long work. It moves only when a participant or the gateway reports progress.

import { make, setText } from "./dom.js";

export class ProgressBar {
  constructor() {
    this._fill = make("span", "progress-fill");
    this._words = make("span", "");
    this._track = make("span", "progress-track", this._fill);
    this._track.setAttribute("role", "progressbar");
    this.node = make("p", "progress", this._words, this._track);
    this.node.hidden = true;
  }

  /** Show {text, done, total}, or hide the bar without it. */
  show(one) {
    this.node.hidden = !one;
    if (!one) return;
    setText(this._words, one.text);
    this._fill.style.transform = `scaleX(${Math.min(1, one.done / one.total)})`;
    const values = { "aria-label": one.text, "aria-valuemin": 0, "aria-valuemax": one.total, "aria-valuenow": Math.min(one.done, one.total), "aria-valuetext": one.text };
    for (const [name, value] of Object.entries(values)) this._track.setAttribute(name, String(value));
  }
}
