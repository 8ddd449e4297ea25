// Older messages than the first ones of the page: reads a page of the gateway's history when the user scrolls up or presses the button
// above the conversation. Owns the position in the history and the line with the progress.

import { make, setText } from "./dom.js";
import * as text from "./text.js";

const PAGE = 300;
const NEAR_PIXELS = 300;
const MAX_UNSEEN_PAGES = 5; // with a filter, a page may have nothing to show
const MAX_OLDER = 5_000;

export class EarlierMessages {
  /**
   * `list` scrolls; `read(query)` reads messages; `add(envelopes)` shows them and tells how many entries became visible;
   * `takeBeginning()` tells where the page begins now, if it has dropped its oldest entries.
   */
  constructor(list, { read, add, takeBeginning }) {
    this._list = list;
    this._read = read;
    this._add = add;
    this._takeBeginning = takeBeginning;
    this._place = undefined;
    this._hasMore = false;
    this._isLoading = false;
    this._count = 0;
    this._words = make("span", "soft");
    this._words.setAttribute("role", "status");
    this._button = make("button", "quiet", "Load older messages");
    this._button.addEventListener("click", () => void this.load());
    this.node = make("p", "earlier", this._button, this._words);
    this.node.hidden = true;
    this._onScroll = () => this._list.scrollTop < NEAR_PIXELS && void this.load();
    list.prepend(this.node);
    list.addEventListener("scroll", this._onScroll, { passive: true });
  }

  close() {
    this._isClosed = true;
    this._list.removeEventListener("scroll", this._onScroll);
  }

  /** The position of the oldest event that the page received; older messages precede it. */
  begin(id) {
    if (this._place !== undefined || id === undefined) return;
    this._place = id;
    void this._lookForOlder();
  }

  /** Offer older messages only if there are any. */
  async _lookForOlder() {
    try {
      const { messages = [], more } = await this._read({ before: this._place, limit: 1 });
      this._hasMore ||= messages.length > 0 || more === true; // the page may have dropped entries meanwhile
    } catch {
      this._hasMore = true; // so that pressing the button shows the error
    }
    this.show(this._hasEntries);
  }

  /** Show the button once there is something below it. */
  show(hasEntries) {
    this._hasEntries = hasEntries;
    this._follow();
    this.node.hidden = !hasEntries || !(this._hasMore || this._end);
  }

  /** Continue from where the page begins now. */
  _follow() {
    const beginning = this._takeBeginning();
    if (beginning === undefined) return;
    this._place = beginning;
    if (this._count >= MAX_OLDER) return;
    this._hasMore = true;
    this._button.hidden = this._isLoading;
    if (!this._isLoading) setText(this._words, "");
  }

  async load() {
    if (this._isLoading || !this._hasMore) return;
    this._isLoading = true;
    this._button.hidden = true;
    setText(this._words, "Loading older messages …");
    try {
      let visible = 0;
      for (let page = 0; page < MAX_UNSEEN_PAGES && this._hasMore && !visible; page += 1) visible = await this._loadPage();
      setText(this._words, this._hasMore ? "" : this._end);
    } catch (error) {
      setText(this._words, error.message);
    }
    this._button.hidden = !this._hasMore;
    this._isLoading = false;
  }

  async _loadPage() {
    const place = this._place;
    const answer = await this._read({ before: place, limit: PAGE, view: 1 });
    if (this._isClosed) return 0;
    this._follow();
    if (this._place !== place) return 0; // entries between these and the page were dropped meanwhile
    const envelopes = (answer.messages ?? []).map((one, index) => ({ ...one, said: answer.said?.[index] ?? undefined, position: answer.positions?.[index] }));
    this._count += envelopes.length;
    this._place = answer.next;
    const isFull = this._count >= MAX_OLDER;
    this._hasMore = answer.more === true && answer.complete === true && !isFull;
    this._end = "These are the oldest messages that the gateway keeps.";
    if (isFull) this._end = `${text.grouped(this._count)} older messages are shown; this page loads no more.`;
    return this._add(envelopes);
  }
}
