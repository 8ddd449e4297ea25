"""`mew init`: a space from a template, in this folder's `.mew`.

Owns which files are made and what is said about them. What a template is and how it is filled is `templates`.
"""

import getpass
import os
import shutil
import sys
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from mew_agent.cli.space.templates import Template, Variable

IGNORED: Final = (".mew/fifos/", ".mew/logs/", ".mew/run.json", ".mew/sessions/", ".mew/tokens/", "fifos/", "logs/")
"""What of a space is not for version control."""

_FOLDERS: Final = ("agents", "logs", "fifos", "tokens")


def init(
    template: Annotated[str | None, typer.Argument(metavar="TEMPLATE", help="Which template.")] = None,
    *,
    name: Annotated[str | None, typer.Option("--name", help="The space's id; else the folder's name.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="The agents' model; `rehearsal` needs no key.")] = None,
    description: Annotated[str | None, typer.Option("--description", help="What the space is for.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a space that is here already.")] = False,
    list_templates: Annotated[bool, typer.Option("--list-templates", help="Name the templates.")] = False,
    template_info: Annotated[
        str | None, typer.Option("--template-info", metavar="TEMPLATE", help="Tell about one template.")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", hidden=True)] = None,
) -> int:
    """Make a space from a template: its space.yaml and agents, in `.mew` of this folder.

    Templates are ours, those of ~/.mew/templates, and those of ./templates. At a terminal it asks for what is not
    given; elsewhere the environment and the defaults stand. Secrets stay in the environment.
    """
    from mew_agent.cli.app import terminal
    from mew_agent.cli.space.templates import find_templates

    folder = Path.cwd()
    templates = find_templates(folder, Path.home())
    if list_templates:
        width = max(len(one) for one in templates)
        terminal.say_lines(f"{one.name:<{width}}  {one.origin:<8}  {_headline(one)}" for one in templates.values())
        return terminal.DONE
    if template_info is not None:
        return _tell_of(_chosen(template_info, templates))
    _refuse_to_overwrite(folder, force=force)
    if port is not None:
        terminal.warn("--port has no effect here; give it to `mew up`")
    given = {"SPACE_NAME": name, "AGENT_MODEL": model, "SPACE_DESCRIPTION": description}
    at_terminal = terminal.is_terminal(sys.stdin) and terminal.is_terminal(sys.stdout)
    chosen = _chosen(template or _ask_which(templates, at_terminal=at_terminal), templates)
    return _make(chosen, folder, {key: value for key, value in given.items() if value}, at_terminal=at_terminal)


def _make(template: "Template", folder: Path, given: dict[str, str], *, at_terminal: bool) -> int:
    from mew_protocol.agent_settings import REHEARSAL
    from mew_spaces.config.loading import parse_space

    from mew_agent.cli.app import terminal
    from mew_agent.cli.space.templates import SPACE_FILE, SPACE_NAME, Surroundings, render, settle_values

    variables = template.facts().variables
    around = Surroundings(folder.name, _user(), date.today().isoformat(), os.environ)
    values = settle_values(variables, given, around, _ask if at_terminal else None)
    where = template.folder / SPACE_FILE
    text = render(template.text(), values, variables, where=str(where))
    space = parse_space(text, path=where)  # a template with a mistake leaves nothing behind
    state = folder / ".mew"
    for part in _FOLDERS:
        (state / part).mkdir(parents=True, exist_ok=True)
    (state / "tokens").chmod(0o700)
    (state / "tokens" / ".gitignore").write_text("*\n", encoding="utf-8")
    for file in template.agent_files():
        (state / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(template.folder / file, state / file)
    (state / SPACE_FILE).write_text(text, encoding="utf-8")
    _ignore(folder / ".gitignore")
    terminal.say(f"'{values[SPACE_NAME]}' is ready: .mew/{SPACE_FILE}, from the template '{template.name}'")
    terminal.say(f"  participants: {', '.join(space.participants)}")
    if any(one.agent is not None and one.agent.base_url != REHEARSAL for one in space.participants.values()):
        _tell_secrets(variables)
    terminal.say("next: mew up -i (takes part in it at once), or mew up")
    return terminal.DONE


def _tell_secrets(variables: "tuple[Variable, ...]") -> None:
    from mew_agent.cli.app import terminal

    for variable in variables:
        if variable.is_secret and variable.env_sources:
            found = next((one for one in variable.env_sources if os.environ.get(one)), None)
            state = "it is set" if found else "it is not set now"
            terminal.say(f"  {variable.name}: read from {found or variable.env_sources[0]} at the start; {state}")


def _refuse_to_overwrite(folder: Path, *, force: bool) -> None:
    from mew_agent.cli.remote.identity import find_run
    from mew_agent.errors import ConfigError

    here = next((path for path in (folder / ".mew" / "space.yaml", folder / "space.yaml") if path.exists()), None)
    if here is not None and not force:
        raise ConfigError(str(here.relative_to(folder)), "there is a space here already; --force writes over .mew")
    found = find_run(folder)
    if found is not None and found[1].is_alive:
        raise ConfigError(found[1].space, "it runs here now; stop it first with `mew down`")


def _chosen(name: str, templates: "dict[str, Template]") -> "Template":
    from mew_agent.errors import ConfigError

    if name not in templates:
        raise ConfigError("TEMPLATE", f"there is no template '{name}'", ", ".join(templates))
    return templates[name]


def _ask_which(templates: "dict[str, Template]", *, at_terminal: bool) -> str:
    from mew_agent.cli.app import terminal
    from mew_agent.cli.space.templates import DEFAULT_TEMPLATE

    if not at_terminal:
        return DEFAULT_TEMPLATE
    names = list(templates)
    for number, one in enumerate(templates.values(), 1):
        terminal.say(f"  {number}  {one.name}: {_headline(one)}")
    answer = str(typer.prompt("Which template", default=DEFAULT_TEMPLATE)).strip()
    return names[int(answer) - 1] if answer.isdigit() and 0 < int(answer) <= len(names) else answer


def _ask(variable: "Variable", default: str) -> str:
    return str(typer.prompt(variable.description or variable.name, default=default, show_default=bool(default)))


def _tell_of(template: "Template") -> int:
    from mew_agent.cli.app import terminal

    facts = template.facts()
    terminal.say(f"{template.name} ({template.origin}): {facts.description or 'says nothing of itself'}")
    for label, value in (("version", facts.version), ("author", facts.author), ("tags", ", ".join(facts.tags))):
        if value:
            terminal.say(f"  {label}: {value}")
    for variable in facts.variables:
        source = f"; from {', '.join(variable.env_sources)}" if variable.env_sources else ""
        secret = "; never stored" if variable.is_secret else ""
        terminal.say(f"  {variable.name}: {variable.description}{source}{secret}")
    readme = template.readme()
    if readme is not None:
        terminal.say(f"\n{readme.rstrip()}")
    return terminal.DONE


def _headline(template: "Template") -> str:
    from mew_agent.errors import ConfigError

    try:
        return template.facts().description
    except ConfigError as error:
        return f"(cannot be used: {error})"


def _ignore(path: Path) -> None:
    """Add what is missing, and change nothing else."""
    known = path.read_text(encoding="utf-8") if path.exists() else ""
    missing = [line for line in IGNORED if line not in known.splitlines()]
    if missing:
        gap = "" if not known or known.endswith("\n") else "\n"
        path.write_text(known + gap + "\n".join(missing) + "\n", encoding="utf-8")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an id without a name
        return "user"
