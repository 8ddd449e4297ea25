// The history chart: tokens over time with a real time axis, and a mark for each compaction. Owns scales, ticks and the
// reading under the pointer. Lines: a figure holds until the next one; an unknown figure leaves a gap.

import { make, makeSvg, setText } from "./dom.js";
import { counted } from "./text.js";

const HEIGHT = 180;
const LABEL_WIDTH = 56; // of a time
const MARGIN = { left: 52, right: 10, top: 14, bottom: 22 };
const STEPS_S = [1, 5, 15, 30, 60, 300, 900, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86_400, 7 * 86_400, 30 * 86_400];
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", hour12: false });
const SECONDS = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** Round times in [fromMs, toMs], about `count` of them, as [ms, label]. Pure. */
export function timeTicks(fromMs, toMs, count = 5) {
  const wanted = (0.7 * (toMs - fromMs)) / 1000 / count;
  const step = 1000 * (STEPS_S.find((one) => one >= wanted) ?? STEPS_S.at(-1));
  const shift = new Date(fromMs).getTimezoneOffset() * 60_000; // days begin at midnight here
  const ticks = [];
  for (let at = Math.ceil((fromMs - shift) / step) * step + shift; at <= toMs; at += step) {
    const format = step >= 86_400_000 ? DAY : step < 60_000 ? SECONDS : CLOCK;
    ticks.push([at, format.format(at)]);
  }
  return ticks;
}

/** Round amounts from 0 to `top`. Pure. */
export function amountTicks(top, count = 4) {
  if (!(top > 0)) return [0];
  const raw = top / count;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = unit * ([1, 2, 2.5, 5, 10].find((one) => one * unit >= raw) ?? 10);
  const ticks = [];
  for (let at = 0; at <= top * 1.001; at += step) ticks.push(Math.round(at));
  return ticks;
}

const short = (amount) => (amount >= 1e6 ? `${+(amount / 1e6).toFixed(1)}M` : amount >= 1000 ? `${+(amount / 1000).toFixed(1)}k` : String(amount));

/** Step lines of known figures as [[ms, value, basis], ...]; unknown figures end a run. Pure. */
export function runsOf(samples, toMs, valueOf) {
  const runs = [];
  let run;
  for (const [index, sample] of samples.entries()) {
    const value = valueOf(sample);
    if (value === undefined) {
      if (run) run.push([sample.ms, run.at(-1)[1]]);
      run = undefined;
      continue;
    }
    if (!run) runs.push((run = []));
    else run.push([sample.ms, run.at(-1)[1]]);
    run.push([sample.ms, value]);
    if (index === samples.length - 1 && toMs > sample.ms) run.push([toMs, value]);
  }
  return runs;
}

/**
 * Draw series [{id, samples: [{ms, tokens, max_tokens, basis}], compactions: [{ms, ...}], place: {colour, dash}}] between two times.
 * One series is drawn in tokens, several in percent of each window.
 */
export class Chart {
  constructor(node) {
    this._node = node;
    this._reading = make("p", "reading");
    this._reading.setAttribute("aria-live", "off");
    this._plot = make("div", "plot");
    this._plot.tabIndex = 0;
    this._plot.setAttribute("role", "group");
    node.replaceChildren(this._plot, this._reading);
    this._plot.addEventListener("pointermove", (event) => this._point(event.clientX));
    this._plot.addEventListener("pointerleave", () => this._read(undefined));
    this._plot.addEventListener("keydown", (event) => this._key(event));
    this._plot.addEventListener("blur", () => this._read(undefined));
    this._sizes = new ResizeObserver(() => this._data && this._drawAll());
    this._sizes.observe(node);
  }

  close() {
    this._sizes.disconnect();
  }

  show(series, fromMs, toMs) {
    this._data = { series, fromMs, toMs };
    this._drawAll();
  }

  _drawAll() {
    const { series, fromMs, toMs } = this._data;
    const width = Math.max(220, this._node.clientWidth);
    this._isPercent = series.length > 1;
    const known = series.flatMap((one) => one.samples.filter((sample) => sample.tokens !== undefined));
    const window = Math.max(0, ...known.map((sample) => sample.max_tokens ?? 0));
    const top = this._isPercent ? 100 : Math.max(1, window, ...known.map((sample) => sample.tokens));
    this._x = (ms) => MARGIN.left + ((ms - fromMs) / (toMs - fromMs)) * (width - MARGIN.left - MARGIN.right);
    const y = (value) => HEIGHT - MARGIN.bottom - (Math.min(value, top) / top) * (HEIGHT - MARGIN.top - MARGIN.bottom);
    this._y = y;
    const svg = makeSvg("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": describe(series) });
    for (const amount of amountTicks(top)) {
      svg.append(makeSvg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(amount), y2: y(amount) }));
      svg.append(makeSvg("text", { class: "tick", x: MARGIN.left - 6, y: y(amount) + 4, "text-anchor": "end" }, this._isPercent ? `${amount}%` : short(amount)));
    }
    for (const [ms, label] of timeTicks(fromMs, toMs, width < 420 ? 3 : 5)) {
      svg.append(makeSvg("line", { class: "grid", x1: this._x(ms), x2: this._x(ms), y1: HEIGHT - MARGIN.bottom, y2: HEIGHT - MARGIN.bottom + 4 }));
      svg.append(makeSvg("text", { class: "tick", x: Math.min(this._x(ms), width - LABEL_WIDTH / 2), y: HEIGHT - 5, "text-anchor": "middle" }, label));
    }
    if (series.length === 1) this._limit(svg, series[0], width, top);
    series.forEach((one) => this._series(svg, one, toMs));
    this._cursor = makeSvg("line", { class: "cursor", y1: MARGIN.top - 6, y2: HEIGHT - MARGIN.bottom });
    svg.append(this._cursor);
    this._plot.replaceChildren(svg);
    this._plot.setAttribute("aria-label", "History; arrow keys step through the figures");
    this._read(this._atMs < fromMs ? undefined : this._atMs);
  }

  _limit(svg, { compactAt, due }, width, top) {
    if (compactAt === undefined || compactAt > top) return;
    svg.append(makeSvg("line", { class: "limit", x1: MARGIN.left, x2: width - MARGIN.right, y1: this._y(compactAt), y2: this._y(compactAt) }, makeSvg("title", {}, due)));
  }

  _series(svg, one, toMs) {
    const valueOf = (sample) => (this._isPercent ? percent(sample) : sample.tokens);
    for (const run of runsOf(one.samples, toMs, valueOf)) {
      const points = run.map(([ms, value]) => `${this._x(ms).toFixed(1)},${this._y(value).toFixed(1)}`).join(" ");
      const line = makeSvg("polyline", { class: "line", points });
      Object.assign(line.dataset, { series: one.place?.colour ?? 0, dash: one.place?.dash ?? 0 });
      svg.append(line);
    }
    for (const cut of one.compactions) {
      const at = this._x(cut.ms);
      const mark = makeSvg("g", { class: "cut" }, makeSvg("line", { x1: at, x2: at, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }), makeSvg("path", { d: `M${at - 5} ${MARGIN.top - 9}h10l-5 8z` }), makeSvg("title", {}, `${one.id}: ${cut.line}`));
      mark.dataset.series = String(one.place?.colour ?? 0);
      svg.append(mark);
    }
  }

  _point(clientX) {
    const { fromMs, toMs } = this._data;
    const box = this._plot.getBoundingClientRect();
    const share = (clientX - box.left - MARGIN.left) / (box.width - MARGIN.left - MARGIN.right);
    this._read(fromMs + Math.max(0, Math.min(1, share)) * (toMs - fromMs));
  }

  _key(event) {
    const times = [...new Set(this._data.series.flatMap((one) => [...one.samples, ...one.compactions].map((sample) => sample.ms)))].sort((a, b) => a - b);
    if (!times.length || !["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    const at = this._atMs ?? times.at(-1) + 1;
    const next = { ArrowLeft: times.findLast((ms) => ms < at) ?? times[0], ArrowRight: times.find((ms) => ms > at) ?? times.at(-1), Home: times[0], End: times.at(-1) };
    this._reading.setAttribute("aria-live", "polite");
    this._read(next[event.key]);
  }

  /** Show the figures at a time; undefined shows the newest. */
  _read(ms) {
    this._atMs = ms;
    const { series, toMs } = this._data;
    const at = ms ?? toMs;
    const x = ms === undefined ? 0 : this._x(ms);
    this._cursor.setAttribute("visibility", ms === undefined ? "hidden" : "visible");
    this._cursor.setAttribute("x1", x);
    this._cursor.setAttribute("x2", x);
    const pieces = series.flatMap((one) => {
      const sample = one.samples.findLast(({ ms: since }) => since <= at); // the sample at that time
      if (!sample) return [];
      return [series.length > 1 ? `${one.id}: ${sample.share}` : sample.reading];
    });
    setText(this._reading, pieces.length ? `${SECONDS.format(at)}  ${pieces.join(" · ")}` : "No figure at this time.");
  }
}

const percent = ({ tokens, max_tokens: max }) => (tokens === undefined || !max ? undefined : (100 * tokens) / max);

const describe = (series) => `${series.map((one) => one.id).join(", ")}: history, ${counted(series.flatMap((one) => one.compactions).length, "compaction")}`;
