// Figures over time: the gateway's records, and the views that arrive after they were read. No DOM here.

import { parseTime } from "./board.js";

const MAX_SAMPLES = 1_200; // of arriving views; above it, every second sample of the older half is dropped
const MAX_READ = 10_000;
const MAX_COMPACTIONS = 1_000; // the newest
const SO_FAR_SECONDS = 3_600; // the longest period without a choice of the user
const MIN_SECONDS = 15;

export class FigureHistory {
  /** `read(path, query)` reads from the gateway. */
  constructor(read, space) {
    this._read = read;
    this._path = `spaces/${encodeURIComponent(space)}/context/history`;
    this._series = new Map();
  }

  /** Read the last `seconds` of one participant, or of all. Throws what `read` throws. */
  async load(seconds, participant) {
    const answer = await this._read(this._path, { seconds: seconds || SO_FAR_SECONDS, limit: MAX_READ, view: 1, ...(participant === undefined ? {} : { participant }) });
    for (const one of answer.participants ?? []) {
      const known = this._series.get(one.id);
      const samples = (one.samples ?? []).map(sampleOf).filter((sample) => Number.isFinite(sample.ms));
      const newestMs = samples.at(-1)?.ms ?? 0;
      const later = (known?.samples ?? []).filter((sample) => sample.ms > newestMs);
      const compactions = merged((one.compactions ?? []).map(compactionOf), known?.compactions ?? []);
      this._series.set(one.id, { samples: [...samples, ...later], compactions });
    }
  }

  /** Add the figures of a view. */
  add({ id, received_at: at, tokens, max_tokens, reading, share, compaction: cut }) {
    const given = sampleOf({ at, tokens, max_tokens, reading, share });
    if (!Number.isFinite(given.ms)) return;
    const series = this._series.get(id) ?? { samples: [], compactions: [] };
    this._series.set(id, series);
    const last = series.samples.at(-1);
    const sample = { ...given, ms: Math.max(given.ms, last?.ms ?? 0) };
    if (last?.reading !== reading) {
      const before = series.samples.at(-2);
      // As in the gateway, the last of several figures within a second stays; a figure before a compaction is never lost.
      if (before && sample.ms - before.ms < 1_000 && sample.tokens >= last.tokens) series.samples.pop();
      series.samples.push(sample);
      if (series.samples.length > MAX_SAMPLES) series.samples = series.samples.filter((_, index) => index % 2 || index > MAX_SAMPLES / 2);
    }
    if (!cut || (cut.at === series.lastCut?.at && cut.freed_tokens === series.lastCut.freed_tokens)) return;
    series.lastCut = { at: cut.at, freed_tokens: cut.freed_tokens };
    const one = compactionOf(cut);
    const isNewest = one.ms > (series.compactions.at(-1)?.ms ?? -Infinity);
    if (!isNewest) series.compactions = merged([one], series.compactions);
    else if (series.compactions.push(one) > MAX_COMPACTIONS) series.compactions.shift();
  }

  /** The figures of a participant since a time; the one in force then comes first, moved to it. */
  since(id, fromMs) {
    const { samples, compactions } = this._series.get(id) ?? { samples: [], compactions: [] };
    const first = samples.findIndex((sample) => sample.ms > fromMs);
    const before = first < 0 ? samples.at(-1) : samples[first - 1];
    const later = first < 0 ? [] : samples.slice(first);
    return {
      id,
      samples: before ? [{ ...before, ms: fromMs }, ...later] : later,
      compactions: compactions.filter((one) => one.ms > fromMs),
    };
  }

  /** How many seconds to show: the chosen ones, or those since the first figure of these participants. */
  shownSeconds(chosen, ids, nowMs) {
    if (chosen) return chosen;
    const first = Math.min(nowMs, ...ids.flatMap((id) => this._series.get(id)?.samples[0]?.ms ?? []));
    return Math.max(MIN_SECONDS, Math.min(SO_FAR_SECONDS, (1.02 * (nowMs - first)) / 1000));
  }

  compactions(id) {
    return this._series.get(id)?.compactions ?? [];
  }
}

const sampleOf = ({ at, tokens, max_tokens, reading, share }) => ({ ms: parseTime(at), tokens: tokens ?? undefined, max_tokens: max_tokens ?? undefined, reading, share });

const compactionOf = (one) => ({ ...one, ms: parseTime(one.at) });

/** Both lists without repetitions, oldest first; those of the first list win. */
function merged(first, second) {
  const all = new Map([...second, ...first].filter((one) => Number.isFinite(one.ms)).map((one) => [one.ms, one]));
  return [...all.values()].sort((a, b) => a.ms - b.ms).slice(-MAX_COMPACTIONS);
}
