// A bar with words for work that takes long. It moves only when a participant or the gateway reports how far it is.

import { make, setText } from "./dom.js";
import * as text from "./text.js";

export class ProgressBar {
  constructor() {
    this._fill = make("span", "progress-fill");
    this._words = make("span", "");
    this._track = make("span", "progress-track", this._fill);
    this._track.setAttribute("role", "progressbar");
    this.node = make("p", "progress", this._words, this._track);
    this.node.hidden = true;
  }

  /** Show {kind, done, total, unit, since}, or hide the bar without it. `age` gives the age of a protocol time. */
  show(one, age) {
    this.node.hidden = !one;
    if (!one) return;
    const ms = age(one.since);
    const words = `${text.sentence(text.plain(one.kind)).slice(0, -1)}: ${text.progress({ progress: one })}${ms === undefined ? "" : `, ${text.span(ms)}`}`;
    setText(this._words, words);
    this._fill.style.transform = `scaleX(${Math.min(1, one.done / one.total)})`;
    const values = { "aria-label": text.plain(one.kind), "aria-valuemin": 0, "aria-valuemax": one.total, "aria-valuenow": Math.min(one.done, one.total), "aria-valuetext": words };
    for (const [name, value] of Object.entries(values)) this._track.setAttribute(name, String(value));
  }
}
