// The sparkline of one participant: its tokens since the page was opened, with a notch at each compaction.

import { makeSvg } from "./dom.js";
import { counted, grouped } from "./text.js";

const WIDTH = 300;
const HEIGHT = 44;
const TOP = 9; // room for the notches
const BOTTOM = 2;

/** Draw samples {tokens, basis, compacted}, oldest first. `status` sets the scale. Null with fewer than two figures. */
export function drawSparkline(samples, status) {
  const figures = samples.filter((sample) => sample.tokens !== undefined).map((sample) => sample.tokens);
  if (figures.length < 2) return null;
  const top = Math.max(status.max_tokens ?? 0, ...figures);
  const x = (index) => (index / (samples.length - 1)) * WIDTH;
  const y = (tokens) => HEIGHT - BOTTOM - (tokens / top) * (HEIGHT - TOP - BOTTOM);
  const notches = samples.flatMap((sample, index) => (sample.compacted ? [x(index)] : []));
  const limit = status.context?.compact_at_tokens;
  const svg = makeSvg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": describe(samples, figures, notches) },
    makeSvg("line", { class: "sparkline-floor", x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 }),
  );
  if (limit !== undefined && limit <= top) {
    svg.append(makeSvg("line", { class: "sparkline-limit", x1: 0, x2: WIDTH, y1: y(limit), y2: y(limit) }));
  }
  for (const run of runsOf(samples)) {
    const points = run.map(([index, tokens]) => `${x(index).toFixed(1)},${y(tokens).toFixed(1)}`).join(" ");
    svg.append(makeSvg("polyline", { class: "sparkline-line", points }));
  }
  for (const at of notches) {
    svg.append(makeSvg("line", { class: "sparkline-notch", x1: at, x2: at, y1: 1, y2: TOP - 1 }));
  }
  return svg;
}

/** Runs of known figures as [index, tokens]. Unknown figures leave a gap. */
function runsOf(samples) {
  const runs = [[]];
  samples.forEach(({ tokens }, index) => {
    if (tokens === undefined) runs.push([]);
    else runs.at(-1).push([index, tokens]);
  });
  return runs.filter((run) => run.length > 1);
}

function describe(samples, figures, notches) {
  const range = `${grouped(figures[0])} to ${grouped(figures.at(-1))} tokens`;
  const cuts = notches.length ? `, ${counted(notches.length, "compaction")}` : "";
  return `Since you opened this page: ${counted(samples.length, "value")}, from ${range}${cuts}`;
}
