// The form that adds a participant: a person or a tool server by an invitation, an agent also as a program that the
// gateway's machine starts. Owns the fields, and how a token that is shown once is handed over.

import { invitation, ROLES } from "./actions.js";
import { make, makeText, setText } from "./dom.js";
import { START_TIMEOUT_MS } from "./requests.js";
import { gatewayUrl } from "./session.js";
import { sentence } from "./text.js";

const HINTS = {
  person: "A person gets a link to sign in.",
  agent: "The agent is started next to the gateway and is written to space.yaml.",
  away: "Its program runs elsewhere and joins with the token that appears here.",
  tool: "A page may not choose programs that run on the gateway's machine. Add one in a terminal there, or add it here and start it elsewhere with its token.",
};

export class AddForm {
  /** `services` as for `Detail`; `agents()` the ids of agents whose model a new one can use. */
  constructor(services, agents) {
    this._services = services;
    this._agents = agents;
    this._id = field("name", { required: true, placeholder: "name" });
    this._role = choice(Object.entries(ROLES).map(([name, one]) => [name, one.label]));
    this._where = choice([["here", "start it here"], ["away", "it runs elsewhere"]]);
    this._like = choice([]);
    this._prompt = make("textarea", "");
    this._prompt.placeholder = "system prompt, optional";
    this._labels = { where: label("Program", this._where), like: label("Model of", this._like), prompt: label("Prompt", this._prompt) };
    this._hint = make("p", "soft");
    this._command = make("code", "");
    this._submit = make("button", "primary", "Add");
    this._submit.type = "submit";
    this._answer = make("div", "answer");
    this._answer.setAttribute("role", "status");
    const form = make("form", "action", label("Name", this._id), label("Role", this._role), ...Object.values(this._labels), this._hint, this._command, make("p", "buttons", this._submit), this._answer);
    form.addEventListener("submit", (event) => (event.preventDefault(), void this._add()));
    form.addEventListener("input", () => this._update());
    this.node = make("details", "section", make("summary", "", make("h3", "", "Add a participant")), form);
    this.show();
  }

  /** Offer what the user may do now. */
  show() {
    this._mayInvite = this._services.maySend("space/invite");
    this._mayStart = this._services.runsPrograms() && this._services.maySend("program/add");
    this.node.hidden = !this._mayInvite;
    const agents = this._agents();
    if (agents.join("\n") !== this._offered) {
      this._offered = agents.join("\n");
      const chosen = this._like.value;
      this._like.replaceChildren(...[["", "the space's default"], ...agents.map((id) => [id, id])].map(option));
      this._like.value = agents.includes(chosen) ? chosen : (agents[0] ?? "");
    }
    this._update();
  }

  _update() {
    const role = this._role.value;
    const starts = role === "agent" && this._mayStart && this._where.value === "here";
    this._labels.where.hidden = !(role === "agent" && this._mayStart);
    this._labels.like.hidden = this._labels.prompt.hidden = !starts;
    setText(this._hint, HINTS[role === "agent" && !starts ? "away" : role]);
    this._command.hidden = role !== "tool";
    setText(this._command, `mew agent add ${this._id.value.trim() || "NAME"} --role tool --command "PROGRAM ARGUMENTS"`);
    this._starts = starts;
  }

  async _add() {
    if (this._isOpen) return;
    const id = this._id.value.trim();
    this._isOpen = true;
    this._say(this._starts ? `Starting ${id} …` : "Sending …");
    this._submit.setAttribute("aria-disabled", "true");
    try {
      if (this._starts) await this._start(id);
      else await this._invite(id);
      this._id.value = "";
    } catch (error) {
      this._say(error.message, true);
    } finally {
      this._isOpen = false;
      this._submit.removeAttribute("aria-disabled");
    }
  }

  async _start(id) {
    const body = { participant: id, ...(this._like.value ? { like: this._like.value } : {}), ...(this._prompt.value.trim() ? { system_prompt: this._prompt.value.trim() } : {}) };
    const answer = await this._services.requests.post(`spaces/${encodeURIComponent(this._services.space)}/programs`, body, START_TIMEOUT_MS);
    if (!answer.done) throw new Error(sentence(answer.text));
    this._say(`${id}: ${sentence(answer.text)}`);
  }

  async _invite(id) {
    const { token } = await this._services.requests.send(invitation(id, this._role.value));
    if (!token) return this._say(`${id} was added.`);
    const link = gatewayUrl("dashboard");
    link.hash = new URLSearchParams({ token, space: this._services.space, participant: id });
    this._answer.dataset.problem = "false";
    this._answer.replaceChildren(
      makeText("p", "", `${id} was added. Its token, shown only once: ${token}`),
      make("p", "buttons", copyButton("Copy token", token), ...(this._role.value === "person" ? [copyButton("Copy sign-in link", link.href)] : [])),
    );
  }

  _say(words, isProblem = false) {
    setText(this._answer, words);
    this._answer.dataset.problem = String(isProblem);
  }
}

const option = ([value, words]) => Object.assign(make("option", "", words), { value });
const label = (words, node) => make("label", "", make("span", "", words), node);

function choice(options) {
  const node = make("select", "");
  node.append(...options.map(option));
  return node;
}

function field(name, more) {
  return Object.assign(make("input", ""), { name, autocomplete: "off", spellcheck: false, ...more });
}

function copyButton(words, value) {
  const button = make("button", "", words);
  button.type = "button";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(value);
      setText(button, "Copied");
    } catch {
      setText(button, "Not copied: the browser refused");
    }
  });
  return button;
}
