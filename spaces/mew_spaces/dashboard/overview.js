// The right pane while no participant is selected: the fullest agents over time, the legend, and the form to add a participant.

import { AddForm } from "./add.js";
import { Chart } from "./chart.js";
import { rangeChoice } from "./detail.js";
import { make, makeText, replaceChildren, setText } from "./dom.js";
import { drawGauge, makeGauge } from "./participant_list.js";

const MAX_SERIES = 6;
const MAX_TILES = 200;
const LEGEND = [
  [{ pattern: "solid", tone: "fine" }, "reported by the provider, or counted by its server"],
  [{ pattern: "hatched", tone: "fine" }, "an estimate, marked with ~"],
  [{ pattern: "dotted", tone: "unknown" }, "not known; the row says why"],
  [{ pattern: "past", tone: "unknown" }, "not known; the outline is what was reported last"],
  [{ pattern: "solid", tone: "notice" }, "compacts in its next turn"],
  [{ pattern: "solid", tone: "warning" }, "near the limit, or in trouble"],
  [{ pattern: "solid", tone: "blocking" }, "blocked until you act"],
];

export class Overview {
  /** `services` are the `Services` of `app.js`. */
  constructor(root, services) {
    this._services = services;
    this._chartBox = make("div", "chart");
    this._names = make("ul", "series-names");
    this._problem = make("span", "soft");
    const title = make("h2", "detail-name", "The whole space");
    title.id = "detail-title";
    const history = make("section", "section", make("h3", "", "The fullest windows"), make("p", "ranges", rangeChoice(services.range, () => void this._load()), this._problem), this._chartBox, this._names);
    this._history = history;
    this._adding = services.adding ??= new AddForm(services); // what is typed in it, and a token that is shown once, stay
    this._tiles = make("ul", "tiles");
    this._tileOf = new Map(); // by participant
    this._totals = make("p", "known");
    this._everyone = make("section", "section everyone", make("h3", "", "Everyone"), this._totals, this._tiles);
    this._tiles.addEventListener("click", (event) => event.target.closest("button")?.dataset.id !== undefined && services.select(event.target.closest("button").dataset.id));
    root.replaceChildren(make("header", "detail-head", title), this._everyone, history, legend(), this._adding.node);
    void this._load();
  }

  close() {
    this._isClosed = true;
    this._chart?.close();
  }

  /** Show the history of the fullest of these lines. */
  show(lines) {
    const fullest = lines.filter((line) => Number.isFinite(line.gauge?.fill)).sort((a, b) => b.gauge.fill - a.gauge.fill || (a.id < b.id ? -1 : 1));
    this._ids = fullest.slice(0, MAX_SERIES).map((line) => line.id);
    this._adding.show();
    this._showEveryone(lines);
    this._draw();
  }

  /** A tile for each agent, the most urgent first: a team in one look. */
  _showEveryone(lines) {
    const agents = lines.filter((line) => line.has_context).sort((a, b) => (a.order < b.order ? -1 : 1));
    this._everyone.hidden = agents.length < 2;
    const totals = this._services.totals();
    setText(this._totals, totals.text ?? "");
    const key = JSON.stringify(agents.map((line) => [line.order, line.word, line.share, line.gauge]));
    if (this._everyone.hidden || this._tiled === key) return;
    this._tiled = key;
    const shown = agents.slice(0, MAX_TILES);
    this._tileOf = new Map(shown.map((line) => [line.id, this._tileOf.get(line.id) ?? makeTile(line.id)]));
    for (const line of shown) fillTile(this._tileOf.get(line.id), line);
    const nodes = [...this._tileOf.values()].map(({ node }) => node);
    if (agents.length > MAX_TILES) nodes.push(make("li", "soft", `${agents.length - MAX_TILES} more in the list`));
    const isSame = nodes.length === this._tiles.children.length && nodes.every((node, index) => node === this._tiles.children[index]);
    if (!isSame) replaceChildren(this._tiles, nodes);
  }

  async _load() {
    try {
      await this._services.figures.load(this._services.range.seconds);
    } catch (error) {
      setText(this._problem, error.message);
    }
    if (!this._isClosed) this._draw();
  }

  _draw() {
    this._history.hidden = !this._ids?.length;
    if (this._history.hidden) return;
    const toMs = this._services.now();
    const fromMs = toMs - 1000 * this._services.figures.shownSeconds(this._services.range.seconds, this._ids, toMs);
    this._chart ??= new Chart(this._chartBox);
    const places = this._services.colours.of(this._ids);
    this._chart.show(this._ids.map((id, index) => ({ ...this._services.figures.since(id, fromMs), place: places[index] })), fromMs, toMs);
    const names = this._ids.join("\n");
    if (this._shown === names) return;
    this._shown = names;
    const rows = this._ids.map((id, index) => {
      const swatch = make("span", "swatch line");
      Object.assign(swatch.dataset, { series: places[index].colour, dash: places[index].dash });
      const button = makeText("button", "name", id);
      button.dataset.key = id;
      button.addEventListener("click", () => this._services.select(id));
      return make("li", "", swatch, button);
    });
    replaceChildren(this._names, rows);
  }
}

function makeTile(id) {
  const [share, word, gauge] = [make("span", "tile-share"), makeText("span", "tile-word", ""), makeGauge()];
  const button = make("button", "tile", makeText("span", "tile-name", id), share, gauge.gauge, word);
  button.dataset.id = id;
  return { node: make("li", "", button), button, share, word, gauge };
}

/** Draw the view of a participant in its tile, which stays the same node, so that it keeps the focus. */
function fillTile({ button, share, word, gauge }, line) {
  setText(share, line.share);
  setText(word, line.word);
  drawGauge(gauge, line.gauge);
  button.dataset.tone = line.tone;
  button.setAttribute("aria-label", `${line.id}, ${line.word}, ${line.share}`);
}

function legend() {
  const rows = LEGEND.map(([{ pattern, tone }, words]) => {
    const fill = make("div", "gauge-fill");
    fill.style.width = pattern === "dotted" ? "0" : "60%";
    const gauge = make("div", "gauge", make("div", "gauge-track", fill));
    Object.assign(gauge.dataset, { pattern, tone });
    return make("li", "", gauge, make("span", "", words));
  });
  const mark = make("div", "gauge-mark");
  mark.style.left = "50%";
  const marked = make("div", "gauge", make("div", "gauge-track"), mark);
  marked.dataset.pattern = "solid";
  rows.push(make("li", "", marked, make("span", "", "where the agent compacts automatically")));
  const cut = make("span", "cut-sample", "▼");
  rows.push(make("li", "", cut, make("span", "", "a compaction, in the history")));
  const node = make("details", "section", make("summary", "", make("h3", "", "What the marks mean")), make("ul", "legend", ...rows));
  node.open = true;
  return node;
}
