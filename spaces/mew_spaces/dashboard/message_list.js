// The messages of a space or of one participant since the page was opened: chats, thoughts, joins, leaves and
// compactions. Newest last, bounded.

import { make, makeText } from "./dom.js";
import { grouped } from "./text.js";

const MAX_LINES = 200;
const MAX_TEXT_CHARS = 4_000;
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

export class MessageList {
  /** Fills `list` with at most `maxLines` lines; shows `empty` while there are none. */
  constructor(list, empty, maxLines = MAX_LINES) {
    this._list = list;
    this._empty = empty;
    this._maxLines = maxLines;
  }

  /** Add a chat envelope. */
  chat(envelope) {
    const text = envelope.payload?.text;
    if (typeof text !== "string") return;
    const to = [envelope.to ?? []].flat().map(String);
    const names = make("span", "names", makeText("bdi", "name", String(envelope.from)), " → ");
    to.forEach((name, index) => names.append(index ? ", " : "", makeText("bdi", "name", name)));
    if (!to.length) names.append("everyone");
    this._add(make("li", "chat", this._time(envelope.ts), names, makeText("p", "said", shortened(text))));
  }

  /** Add one reasoning step. */
  thought(envelope) {
    const { reasoning, message } = envelope.payload ?? {};
    const text = [reasoning, message].find((one) => typeof one === "string" && one.trim());
    if (text === undefined) return;
    const names = make("span", "names", makeText("bdi", "name", String(envelope.from)), " thinks");
    this._add(make("li", "chat thought", this._time(envelope.ts), names, makeText("p", "said", shortened(text))));
  }

  /** Add a note. */
  note(ts, text) {
    this._add(make("li", "note", this._time(ts), makeText("span", "", text)));
  }

  /** Add a join or leave. Several in a row share a line. */
  presence(ts, id, verb) {
    const last = this._list.lastElementChild;
    if (last?.dataset.verb !== verb) {
      this._add(make("li", "note", this._time(ts), make("span", "", makeText("bdi", "", id), ` ${verb}`)));
      this._list.lastElementChild.dataset.verb = verb;
      return;
    }
    last.lastElementChild.lastChild.before(", ", makeText("bdi", "", id));
  }

  clear() {
    this._list.replaceChildren();
    this._list.hidden = true;
    this._empty.hidden = false;
  }

  _time(ts) {
    const at = new Date(ts);
    const time = Number.isNaN(at.getTime()) ? new Date() : at;
    const node = make("time", "", CLOCK.format(time));
    node.dateTime = time.toISOString();
    return node;
  }

  _add(line) {
    const list = this._list;
    list.hidden = false;
    this._empty.hidden = true;
    // Keep the newest line in view unless the user scrolled back.
    const follows = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
    list.append(line);
    while (list.children.length > this._maxLines) list.firstElementChild.remove();
    if (follows) list.scrollTop = list.scrollHeight;
  }
}

function shortened(text) {
  const more = text.length - MAX_TEXT_CHARS;
  return more <= 0 ? text : `${text.slice(0, MAX_TEXT_CHARS)} … (${grouped(more)} more characters)`;
}
