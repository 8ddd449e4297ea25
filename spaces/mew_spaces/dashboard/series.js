// The colour and dash of each participant in charts: the same while the page is open. Pure.

const COLOURS = 6; // as --series-N in the style sheet
const DASHES = 2;

export class SeriesColours {
  constructor() {
    this._places = new Map(); // of each participant shown so far
  }

  /** The places {colour, dash} of participants that are shown together. A place changes only if two of them share it. */
  of(ids) {
    const taken = new Set();
    const places = new Map();
    const later = [];
    for (const id of ids) {
      const known = this._places.get(id);
      if (known === undefined || taken.has(known)) later.push(id);
      else taken.add(known), places.set(id, known);
    }
    for (const id of later.sort()) {
      let place = this._places.size % (COLOURS * DASHES);
      while (taken.has(place)) place = (place + 1) % (COLOURS * DASHES);
      taken.add(place);
      places.set(id, place);
      this._places.set(id, place);
    }
    return ids.map((id) => ({ colour: places.get(id) % COLOURS, dash: Math.floor(places.get(id) / COLOURS) }));
  }
}
