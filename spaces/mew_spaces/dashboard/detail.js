// The right pane: one participant's figures, composition, history, compactions, pins, tools and log, and the actions on
// it. Owns the sections and their forms. Figures come from the board, the past from the gateway or the agent.

import { ACTIONS, MEMBERSHIP, availableActions, isStatus, payloadOf } from "./actions.js";
import { aged, parseTime } from "./board.js";
import { Chart } from "./chart.js";
import { Composition } from "./composition.js";
import { make, makeSelect, makeText, replaceChildren, setText, setTextOrHide } from "./dom.js";
import { render } from "./markdown.js";
import { drawGauge, makeGauge } from "./participant_list.js";
import { ProgressBar } from "./progress.js";
import { ProgramLog } from "./program.js";
import * as text from "./text.js";

const RANGES = [[0, "so far"], [900, "15 min"], [3_600, "1 h"], [86_400, "24 h"], [7 * 86_400, "7 d"], [90 * 86_400, "90 d"]];
const MAX_LOG = 60;
const SETTLED_MS = 150; // so that rows passed with arrow keys read no history
const MAX_COMPACTIONS = 50;
const MAX_TOOLS = 500; // the limit of agents
const MAX_TOOL_CHARS = 300;
const MARGIN = 0.02;

export class Detail {
  /** Shows the participant of a line in `root`. `services` are the `Services` of `app.js`. */
  constructor(root, line, services) {
    this.id = line.id;
    this._services = services;
    this._drawn = {};
    this._form = undefined;
    this._isOpen = false; // a request waits for its answer
    this._build(root);
    this.show(line);
    this._loading = setTimeout(() => void this._load(), SETTLED_MS);
  }

  close() {
    this._isClosed = true;
    clearTimeout(this._loading);
    this._chart?.close();
  }

  // The skeleton

  _build(root) {
    const p = (name, tag = "p") => (this[`_${name}`] = make(tag, name));
    this._gauge = makeGauge();
    this._name = makeText("h2", "detail-name", this.id);
    this._name.id = "detail-title";
    this._actions = make("div", "actions");
    this._formBox = make("div", "form-box");
    this._reply = make("p", "answer");
    this._reply.setAttribute("role", "status");
    this._amount = make("b", "amount");
    this._window = make("span", "soft");
    this._level = make("span", "level");
    const figure = make("p", "figure", this._amount, " ", this._window, " ", this._level);
    this._facts = make("dl", "facts");
    this._composition = new Composition({
      askPrefix: () => this._askPrefix(),
      mayAsk: () => this._line.connected && this._services.maySend("participant/request-status", this.id),
    });
    this._chartBox = make("div", "chart");
    this._cuts = make("div", "cuts cut-list");
    this._pins = make("div", "pins");
    this._tools = make("div", "tools");
    this._log = make("ol", "log");
    const log = `spaces/${encodeURIComponent(this._services.space)}/programs/${encodeURIComponent(this.id)}/log`;
    this._program = new ProgramLog(this.id, async (lines) => (await this._services.requests.read(log, { lines })).lines);
    root.replaceChildren(
      make("header", "detail-head", make("div", "", this._name, p("about")), p("word", "span")),
      this._actions,
      p("allowed", "div"),
      this._formBox,
      this._reply,
      ...(this._contextSections = [
        section("figures", "Context window", true, figure, this._gauge.gauge, (this._progress = new ProgressBar()).node, p("known"), p("remark"), (this._savings = make("ul", "savings")), fold("All figures", this._facts)),
        section("composition", "Composition", true, ...this._composition.nodes),
        section("history", "History", true, this._ranges(), this._chartBox),
        section("compactions", "Compactions", true, this._cuts),
        this._pinSection = section("pins", "Pins", false, this._pins),
      ]),
      (this._plain = make("p", "remark")),
      this._toolSection = section("tools", "Tools", false, this._tools),
      (this._logSection = section("log", "Log", false, this._program.node, make("h4", "", "Status changes"), this._log)),
    );
    this._about.dir = "auto";
    this._word.dir = "auto";
    this._remark.dir = "auto";
    this._gauge.gauge.classList.add("large");
    this._logSection.addEventListener("toggle", () => this._logSection.open && !this._program.node.hidden && void this._program.load());
    this._toolSection.addEventListener("toggle", () => this._toolSection.open && void this._loadTools());
    this._pinSection.addEventListener("toggle", () => this._pinSection.open && void this._loadPins());
    for (const node of root.querySelectorAll("details[data-section]")) keepOpen(node);
  }

  _ranges() {
    this._full = make("span", "soft");
    return make("p", "ranges", rangeChoice(this._services.range, () => void this._load()), this._full);
  }

  // The status

  /** Show a new line of the same participant. */
  show(line) {
    this._line = line;
    this._name.closest("header").dataset.tone = line.tone;
    setText(this._word, line.word);
    setText(this._about, line.about);
    for (const node of this._contextSections) node.hidden = !line.has_context;
    setTextOrHide(this._plain, line.has_context ? "" : this._aged(line.remarks.join(" · ")));
    this._once("actions", this._available(), (names) => this._drawActions(names));
    if (!line.has_context) return;
    setText(this._amount, line.amount);
    setText(this._window, `of ${line.window}`);
    setText(this._level, line.fullness);
    this._once("gauge", line.gauge, () => drawGauge(this._gauge, line.gauge));
    this._once("composition", [line.parts, line.max_tokens], () => this._composition.show(line));
    this._once("savings", line.savings ?? [], (all) => this._savings.replaceChildren(...all.map((one) => makeText("li", "", one))));
    this._once("pins", line.pins, () => this._drawPins(line.pins ?? []));
    this._once("last", line.compaction?.at, () => this._drawCuts());
    this.tick();
  }

  /** Draw what depends on the time: ages, and the end of the chart. */
  tick() {
    const line = this._line;
    this._once("available", this._available(), (names) => this._drawActions(names));
    this._once("allowed", this._services.allowed(this.id), (calls) => this._drawAllowed(calls));
    this._drawLog();
    if (!line.has_context) return;
    this._progress.show(line.progress && { ...line.progress, text: this._aged(line.progress.text) });
    setText(this._known, this._aged([line.origin, line.due].filter(Boolean).join(" · ")));
    setTextOrHide(this._remark, this._aged(line.remarks.join(" · ")));
    this._describeGauge(line);
    this._drawFacts(line.facts.map(([name, value]) => [name, this._aged(value)]));
    this._drawChart();
  }

  _aged(words) {
    return aged(words, this._services.age);
  }

  _available() {
    const { participants, startable } = this._services.programs();
    const programs = { restart_program: participants.includes(this.id), start_program: startable.includes(this.id) && !this._line.connected };
    const facts = { me: this._services.me, hasTurn: Boolean(this._services.runningTurn(this.id)), programs };
    this._program.node.hidden = !programs.restart_program || !this._services.maySend("program/log", this.id);
    return availableActions(this._line, facts, this._services.maySend);
  }

  _describeGauge({ figure, known, old, due, tokens, max_tokens: max }) {
    const { gauge, mark } = this._gauge;
    mark.title = due ?? "";
    const label = this._aged([figure, known, old].filter(Boolean).join(", "));
    const isMeasured = Number.isFinite(tokens) && Number.isFinite(max);
    const values = isMeasured
      ? { role: "meter", "aria-label": `Context of ${this.id}`, "aria-valuemin": 0, "aria-valuemax": max, "aria-valuenow": Math.min(tokens, max), "aria-valuetext": label }
      : { role: "img", "aria-label": `Context of ${this.id}: ${label}` };
    this._once("label", values, () => {
      for (const name of ["role", "aria-label", "aria-valuemin", "aria-valuemax", "aria-valuenow", "aria-valuetext"]) {
        if (name in values) gauge.setAttribute(name, String(values[name]));
        else gauge.removeAttribute(name);
      }
    });
  }

  /** The parts of the prefix, which the participant lists on request. */
  async _askPrefix() {
    const { said } = await this._ask("participant/request-status", { fields: ["prefix", "max_tokens"] }, isStatus);
    if (!said?.parts) throw new Error(`${this.id} does not list its tools.`);
    return said.parts;
  }

  _drawFacts(rows) {
    if (this._facts.children.length !== rows.length) this._facts.replaceChildren(...rows.map(() => make("div", "", make("dt"), makeText("dd", "", ""))));
    rows.forEach(([label, value], index) => {
      setText(this._facts.children[index].firstElementChild, label);
      setText(this._facts.children[index].lastElementChild, value);
    });
  }

  // The past

  async _load() {
    try {
      await this._services.figures.load(this._services.range.seconds, this.id);
    } catch (error) {
      if (!this._isClosed) setText(this._full, error.message);
    }
    if (this._isClosed) return;
    this._drawChart();
    this._drawCuts();
  }

  _drawChart() {
    const toMs = this._services.now();
    const fromMs = toMs - 1000 * this._services.figures.shownSeconds(this._services.range.seconds, [this.id], toMs);
    const series = this._services.figures.since(this.id, fromMs);
    Object.assign(series, { compactAt: this._line.compact_at_tokens, due: this._line.due ?? "" });
    this._chart ??= new Chart(this._chartBox);
    const step = Math.max(1000, (toMs - fromMs) / 400); // a change of less than a pixel is not drawn
    this._once("chart", [Math.floor(toMs / step), series.samples.length, series.samples.at(-1), series.compactions.length], () => this._chart.show([series], fromMs, toMs + MARGIN * (toMs - fromMs)));
  }

  _drawCuts() {
    const all = this._services.figures.compactions(this.id).slice(-MAX_COMPACTIONS).reverse();
    this._once("cuts", all.map((one) => [one.at, one.asked_by, one.freed_tokens, one.tokens_after]), () => {
      const open = new Set([...this._cuts.querySelectorAll("details[open]")].map((node) => node.dataset.at));
      const kept = new Map([...this._cuts.children].map((node) => [node.dataset.at, node]));
      replaceChildren(this._cuts, all.map((one) => (open.has(one.at) && kept.get(one.at)) || this._cut(one)));
      if (!all.length) this._cuts.append(make("p", "soft", "No compaction yet."));
    });
  }

  _cut(one) {
    const content = make("div", "cut-content");
    const when = make("time", "", text.clock(one.ms));
    when.dateTime = one.at;
    const summary = make("summary", "", when, " ", makeText("span", "", one.line));
    const details = make("details", "cut", summary, content);
    summary.dataset.key = details.dataset.at = one.at;
    details.addEventListener("toggle", () => {
      if (details.open && !content.children.length) void this._openCut(one, content);
    });
    return details;
  }

  /** Show what a compaction removed and what took its place, as far as the agent tells. */
  async _openCut(one, content) {
    content.replaceChildren(facts(one.known ?? []), make("p", "soft", `Asking ${this.id} …`));
    const last = content.lastElementChild;
    try {
      const { payload: list, said } = await this._past({});
      const found = (list?.entries ?? []).find((entry) => parseTime(entry.at) === one.ms);
      if (!found) throw new Error(`${this.id} no longer has this entry.`);
      const { payload: whole } = await this._past({ number: found.number });
      const known = said?.changes?.find((change) => change.number === found.number)?.facts ?? [];
      content.replaceChildren(facts(known), ...this._shownCut(found, whole ?? {}));
    } catch (error) {
      setText(last, error.message);
    }
  }

  _shownCut(found, whole) {
    const nodes = [];
    if (whole.error) nodes.push(makeText("p", "problem", whole.error));
    if (whole.summary) nodes.push(make("h4", "", "What replaced it"), render(whole.summary));
    else nodes.push(make("p", "soft", "No summary was written."));
    const pins = this._line.pins?.length ?? 0;
    nodes.push(make("p", "soft", pins ? `${text.counted(pins, "pin")} stayed.` : "No pins."));
    const items = (whole.items ?? []).map((item) => make("li", "", make("b", "", item.sender ? `${item.sender} (${item.role})` : item.role), " ", makeText("span", "", text.shortened(item.text, 1_500))));
    if (items.length) nodes.push(fold(`Removed: ${text.counted(items.length, "message")}${whole.next ? " and more" : ""}`, make("ol", "items", ...items)));
    if (found.undone_by === undefined && found.trigger !== "undo" && !found.problem && this._services.maySend("participant/undo", this.id)) {
      const undo = make("button", "", "Undo");
      undo.setAttribute("aria-label", `Undo compaction ${found.number} of ${this.id}`);
      undo.addEventListener("click", () => void this._send("undo", { number: String(found.number) }));
      nodes.push(make("p", "buttons", undo));
    }
    return nodes;
  }

  async _past(payload) {
    if (!this._services.maySend("participant/request-history", this.id)) throw new Error("You may not request past compactions of this participant.");
    if (!this._line.connected) throw new Error(`${this.id} is disconnected, and only it has the rest.`);
    return this._ask("participant/request-history", payload, (one) => one.kind === "participant/history");
  }

  _ask(kind, payload, isAnswer) {
    return this._services.requests.ask({ kind, to: [this.id], payload }, isAnswer, { timeoutMs: 20_000 });
  }

  // Pins, tools and log

  /** What the participant may call without asking, and how to end that. */
  _drawAllowed(calls) {
    replaceChildren(
      this._allowed,
      calls.map(({ text: words, pattern }) => {
        const row = make("p", "pin", makeText("span", "", `${words}. `));
        if (!this._services.maySend("capability/revoke", this.id)) return row;
        const button = make("button", "quiet", "Stop allowing");
        button.dataset.key = words;
        button.addEventListener("click", () => void this._request("capability/revoke", { recipient: this.id, capabilities: [pattern], reason: "no longer always allowed" }));
        row.append(button);
        return row;
      }),
    );
  }

  _drawPins(pins) {
    setText(this._pinSection.querySelector("h3"), pins.length ? `Pins (${pins.length})` : "Pins");
    replaceChildren(this._pins, pins.length ? pins.map((pin) => this._pin(pin)) : [make("p", "soft", "Nothing is pinned.")]);
    if (this._pinSection.open) void this._loadPins();
  }

  _pin(pin) {
    const row = make("div", "pin", makeText("p", "", pin.text), make("p", "soft", pin.about));
    if (pin.is_removable && this._services.maySend("participant/unpin", this.id)) {
      const button = make("button", "quiet", "Remove");
      button.dataset.key = pin.id;
      button.setAttribute("aria-label", `Remove pin ${pin.id}`);
      button.addEventListener("click", () => void this._request("participant/unpin", { pin: pin.id }, isStatus));
      row.append(button);
    }
    return row;
  }

  async _loadPins() {
    const { pins, connected } = this._line;
    if (!pins?.length || !connected || !this._services.maySend("participant/request-status", this.id)) return;
    try {
      const answer = await this._ask("participant/request-status", { fields: ["pins"] }, (one) => isStatus(one) && one.said?.pins !== undefined);
      if (!this._isClosed) replaceChildren(this._pins, answer.said.pins.map((pin) => this._pin(pin)));
    } catch {
      // keep the list without texts
    }
  }

  async _loadTools() {
    if (!this._services.maySend("mcp/request", this.id)) return this._tools.replaceChildren(make("p", "soft", "You may not list its tools."));
    this._tools.replaceChildren(make("p", "soft", `Asking ${this.id} …`));
    try {
      const answer = await this._ask("mcp/request", { jsonrpc: "2.0", id: 1, method: "tools/list", params: {} }, (one) => one.kind === "mcp/response");
      const tools = answer.payload?.result?.tools ?? [];
      const rows = tools.slice(0, MAX_TOOLS).map((tool) => {
        const [name, about] = [tool?.name, tool?.description].map((one) => String(one ?? "").slice(0, MAX_TOOL_CHARS).split("\n")[0]);
        return make("li", "", makeText("code", "", name), " ", makeText("span", "soft", about));
      });
      if (tools.length > MAX_TOOLS) rows.push(make("li", "soft", `${tools.length - MAX_TOOLS} more`));
      this._tools.replaceChildren(rows.length ? make("ul", "tool-list", ...rows) : make("p", "soft", answer.payload?.error?.message ?? "It offers no tools."));
    } catch (error) {
      this._tools.replaceChildren(makeText("p", "soft", error.message));
    }
  }

  _drawLog() {
    const lines = this._services.log(this.id).slice(-MAX_LOG);
    this._once("log", [lines.length, lines.at(-1)], () => {
      this._log.replaceChildren(...lines.toReversed().map(([ms, words]) => make("li", "", make("time", "", text.clock(ms)), " ", makeText("span", "", words))));
      if (!lines.length) this._log.append(make("li", "soft", "Nothing since you opened this page."));
    });
  }

  // Actions

  async _startProgram(name) {
    this._say(`${name === "start_program" ? "Starting" : "Restarting"} the program of ${this.id} …`);
    try {
      this._say(await this._services.requests.restartProgram(this.id));
    } catch (error) {
      this._say(error.message, true);
    }
  }

  _drawActions(names) {
    this._drawn.available = this._drawn.actions = JSON.stringify(names);
    const main = names.filter((name) => ACTIONS[name].is_main);
    const others = names.filter((name) => !ACTIONS[name].is_main);
    const wasOpen = this._actions.querySelector(".menu")?.open === true; // read now: the menu's own event comes after the click
    const nodes = main.map((name) => this._button(name));
    if (others.length) {
      const menu = make("details", "menu", make("summary", "", "More"), make("div", "", ...others.map((name) => this._button(name))));
      menu.firstElementChild.dataset.key = "more";
      menu.open = wasOpen;
      nodes.push(menu);
    }
    replaceChildren(this._actions, nodes);
  }

  _button(name) {
    const button = make("button", "", ACTIONS[name].label);
    button.dataset.action = button.dataset.key = name;
    button.setAttribute("aria-label", `${ACTIONS[name].label}: ${this.id}`);
    button.addEventListener("click", () => this._choose(name));
    return button;
  }

  _choose(name) {
    const action = ACTIONS[name];
    if (action.is_direct || !(action.fields || action.confirm)) return void this._send(name, {});
    if (this._form === name) return this._closeForm();
    this._form = name;
    const fields = (action.fields ?? []).map((field) => make("label", "", make("span", "", field.label), input(field)));
    const submit = make("button", action.confirm ? "danger" : "primary", action.label);
    submit.type = "submit";
    const cancel = make("button", "quiet", action.confirm ? "Keep" : "Close");
    cancel.addEventListener("click", () => this._closeForm());
    const form = make("form", "action", ...(action.confirm ? [make("p", "", action.confirm.replace("{participant}", this.id))] : []), ...fields, make("p", "buttons", submit, cancel));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const values = Object.fromEntries([...new FormData(form)].map(([key, value]) => [key, String(value).trim()]));
      this._closeForm();
      void this._send(name, values);
    });
    this._formBox.replaceChildren(form);
    form.querySelector("input, textarea, select, button").focus();
  }

  _closeForm() {
    const name = this._form;
    this._form = undefined;
    this._formBox.replaceChildren();
    this._actions.querySelector(`[data-action="${name}"]`)?.focus();
  }

  async _send(name, values) {
    const action = ACTIONS[name];
    if (action.is_program) return this._startProgram(name);
    const turn = action.needs_turn ? this._services.runningTurn(this.id) : undefined;
    await this._request(action.kind, payloadOf(action, values, this.id), action.isAnswer, turn?.id);
  }

  /** Send an envelope and say what came of it. */
  async _request(kind, payload, isAnswer, context) {
    if (this._isOpen) return void this._say("Wait for the answer to the last request.", true);
    this._isOpen = true;
    const size = Number.isFinite(this._line.tokens) ? ` ${this._line.amount} tokens` : "";
    this._say(kind === "participant/compact" ? `Compacting${size} …` : "Sent; waiting for the answer …");
    const isMembership = MEMBERSHIP.has(kind);
    const envelope = { kind, payload, ...(isMembership ? {} : { to: [this.id] }), ...(context ? { context } : {}) };
    try {
      if (!isAnswer) {
        const receipt = await this._services.requests.send(envelope);
        return this._say(receipt.text ?? "Accepted by the gateway.");
      }
      const answer = await this._services.requests.ask(envelope, isAnswer);
      this._say(text.answered(answer), answer.said?.stage === "problem");
    } catch (error) {
      this._say(error.message, true);
    } finally {
      this._isOpen = false;
    }
  }

  _say(words, isProblem = false) {
    setText(this._reply, words ?? "");
    this._reply.dataset.problem = String(isProblem);
  }

  /** Draw a part only if its data changed. */
  _once(name, data, draw) {
    const key = JSON.stringify(data ?? null);
    if (this._drawn[name] === key) return;
    this._drawn[name] = key;
    draw(data);
  }
}

/** A choice of the time that charts show, which is the same for all. */
export function rangeChoice(range, onChange) {
  const node = makeSelect(RANGES);
  node.setAttribute("aria-label", "Time shown");
  node.value = String(range.seconds);
  node.addEventListener("change", () => {
    range.seconds = Number(node.value);
    onChange();
  });
  return node;
}

const opened = new Map(); // which sections the user opened or closed, for every participant

function keepOpen(node) {
  const { section: name } = node.dataset;
  if (opened.has(name)) node.open = opened.get(name);
  node.addEventListener("toggle", () => opened.set(name, node.open));
}

function section(name, title, isOpen, ...children) {
  const node = make("details", "section", make("summary", "", make("h3", "", title)), ...children);
  node.dataset.section = name;
  node.open = isOpen;
  return node;
}

const fold = (title, ...children) => make("details", "inner", make("summary", "", title), ...children);

const facts = (rows) => make("dl", "facts", ...rows.map(([label, value]) => make("div", "", make("dt", "", label), makeText("dd", "", String(value)))));

function input({ name, type, placeholder, required, options, value, long: isLong }) {
  const node = options ? makeSelect(options.map((one) => [one, one])) : make(isLong ? "textarea" : "input", "");
  node.name = name;
  if (type) node.type = type;
  if (type === "number") Object.assign(node, { min: 0, step: 1, inputMode: "numeric" });
  if (placeholder) node.placeholder = placeholder;
  if (value) node.value = value;
  node.required = required === true;
  return node;
}
