// The form that adds a participant: by an invitation, or with a program on the gateway's machine (an agent, a participant of a listed type,
// or a program of space.yaml). Owns the fields, and the transfer of a token that is shown once. A page never chooses a command.

import { invitation, ROLES } from "./actions.js";
import { copyText, make, makeOption, makeSelect, makeText, setText } from "./dom.js";
import { START_TIMEOUT_MS } from "./requests.js";
import { gatewayUrl } from "./session.js";
import { sentence, wholeSentence } from "./text.js";

// The ways to add a participant. The gateway's list adds those with a `type`.
const LINK = { label: "", hint: "A person gets a link to sign in." };
const HERE = { label: "start it here", hint: "The agent is started next to the gateway and is written to space.yaml." };
const DECLARED = { label: "from space.yaml", hint: "Its program is in space.yaml and has not been started." };
const AWAY = { label: "it runs elsewhere", hint: "Its program runs elsewhere and joins with the token that appears here." };

export class AddForm {
  /** `services` are the `Services` of `app.js`. */
  constructor(services) {
    this._services = services;
    this._id = field("name", { placeholder: "name" });
    this._role = makeSelect(Object.entries(ROLES));
    this._way = makeSelect([]);
    this._declared = makeSelect([]);
    this._value = field("value", {});
    this._choice = makeSelect([]);
    this._like = makeSelect([]);
    this._prompt = make("textarea", "");
    this._prompt.placeholder = "system prompt, optional";
    this._rows = { way: label("Program", this._way), id: label("Name", this._id), declared: label("Which", this._declared), value: label("", this._value), choice: label("", this._choice), like: label("Model of", this._like), prompt: label("Prompt", this._prompt) };
    this._hint = make("p", "soft");
    this._submit = make("button", "primary", "Add");
    this._submit.type = "submit";
    this._answer = make("div", "answer");
    this._answer.setAttribute("role", "status");
    const form = make("form", "action", label("Role", this._role), ...Object.values(this._rows), this._hint, make("p", "buttons", this._submit), this._answer);
    form.addEventListener("submit", (event) => (event.preventDefault(), void this._add()));
    form.addEventListener("input", () => {
      if (this._answer.dataset.problem === "true") this._say(""); // a token stays, because it is shown only once
      this._update();
    });
    this.node = make("details", "section", make("summary", "", make("h3", "", "Add a participant")), form);
    this.show();
  }

  /** Offer what the user may do now. */
  show() {
    const { maySend } = this._services;
    const { running, startable, models, types } = this._services.programs();
    this.node.hidden = !maySend("space/invite");
    this._mayStart = running && maySend("program/add");
    this._types = this._mayStart ? types : [];
    offer(this._like, [["", "the space's default"], ...models.map((id) => [id, id])], models[0] ?? "");
    offer(this._declared, startable.filter((id) => maySend("program/restart", id)).map((id) => [id, id]));
    this._update();
  }

  _update() {
    const ways = this._ways(this._role.value);
    offer(this._way, ways.map(({ label }) => [label, label]));
    const way = (this._chosen = ways.find(({ label }) => label === this._way.value));
    const choices = way.type?.choices ?? [];
    offer(this._choice, choices.map((choice) => [choice, choice]));
    const shown = { way: ways.length > 1, id: way !== DECLARED, declared: way === DECLARED, value: way.type && !choices.length, choice: choices.length, like: way === HERE, prompt: way === HERE };
    for (const [name, row] of Object.entries(this._rows)) row.hidden = !shown[name];
    for (const row of [this._rows.value, this._rows.choice]) setText(row.firstChild, way.type?.value ?? "");
    this._id.required = shown.id;
    this._value.required = Boolean(shown.value);
    setText(this._hint, way.hint);
    setText(this._submit, way === DECLARED ? "Start" : "Add");
  }

  _ways(role) {
    if (role === "person") return [LINK];
    const types = this._types.filter((type) => type.role === role).map((type) => ({ label: type.title, hint: `${type.help} For other settings, edit space.yaml.`, type }));
    return [...(role === "agent" && this._mayStart ? [HERE] : []), ...types, ...(this._declared.options.length ? [DECLARED] : []), AWAY];
  }

  async _add() {
    if (this._isOpen) return;
    const way = this._chosen;
    const id = way === DECLARED ? this._declared.value : this._id.value.trim();
    this._isOpen = true;
    this._say(way === LINK || way === AWAY ? "Sending …" : `Starting ${id} …`);
    this._submit.setAttribute("aria-disabled", "true");
    try {
      if (way === DECLARED) this._say(`${id}: ${await this._services.requests.restartProgram(id)}`);
      else if (way === HERE) await this._start({ participant: id, like: this._like.value, system_prompt: this._prompt.value.trim() });
      else if (way.type) await this._start({ participant: id, type: way.type.type, value: this._rows.value.hidden ? this._choice.value : this._value.value.trim() });
      else await this._invite(id);
      this._id.value = this._value.value = "";
    } catch (error) {
      this._say(error.message, true);
    } finally {
      this._isOpen = false;
      this._submit.removeAttribute("aria-disabled");
    }
  }

  async _start(program) {
    const body = Object.fromEntries(Object.entries(program).filter(([, value]) => value));
    const answer = await this._services.requests.post(`spaces/${encodeURIComponent(this._services.space)}/programs`, body, START_TIMEOUT_MS);
    if (!answer.done) throw new Error(wholeSentence(answer.text));
    this._say(`${program.participant}: ${sentence(answer.text)}`);
  }

  async _invite(id) {
    const { token, text } = await this._services.requests.send(invitation(id, [this._role.value]));
    if (!token) return this._say(text);
    const link = gatewayUrl("dashboard");
    link.hash = new URLSearchParams({ token, space: this._services.space, participant: id });
    this._answer.dataset.problem = "false";
    this._answer.replaceChildren(
      makeText("p", "", text),
      make("p", "buttons", copyButton("Copy token", token), ...(this._role.value === "person" ? [copyButton("Copy sign-in link", link.href)] : [])),
    );
  }

  _say(words, isProblem = false) {
    setText(this._answer, words);
    this._answer.dataset.problem = String(isProblem);
  }
}

const label = (words, node) => make("label", "", make("span", "", words), node);

/** Replace the options of a choice if they changed; what was chosen stays, or `preferred` is chosen. */
function offer(node, options, preferred = options[0]?.[0] ?? "") {
  const key = JSON.stringify(options);
  if (node.dataset.offered === key) return;
  const chosen = node.value;
  node.dataset.offered = key;
  node.replaceChildren(...options.map(makeOption));
  node.value = chosen && options.some(([value]) => value === chosen) ? chosen : preferred;
}

function field(name, more) {
  return Object.assign(make("input", ""), { name, autocomplete: "off", spellcheck: false, ...more });
}

function copyButton(words, value) {
  const button = make("button", "", words);
  button.addEventListener("click", () => void copyText(button, value));
  return button;
}
