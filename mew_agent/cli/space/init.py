"""`mew init`: creates a space from a template in the working folder.

Writes the files, and prints their names. `templates` finds and fills templates.
"""

import getpass
import os
import re
import shutil
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Final

import typer
from mew_settings.private_files import make_private_folder
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.auth import STATE_NAME

from mew_agent.cli.app import terminal
from mew_agent.cli.app.locate import SPACE_FILE, find_run, is_reference, relative_to, space_file_in
from mew_agent.cli.app.options import OUTPUT, option
from mew_agent.cli.space.agent_type import AGENT_KEY
from mew_agent.cli.space.templates import (
    DEFAULT_TEMPLATE,
    PERSON_NAME,
    SPACE_NAME,
    Template,
    TemplateVariable,
    choose_values,
    find_templates,
    render,
)
from mew_agent.errors import ConfigError, unknown_name
from mew_agent.model.builtin import builtin_model, is_builtin, keyless_model

IGNORED: Final = (
    ".mew/fifos/",
    ".mew/history-*",
    ".mew/last-run.json",
    ".mew/logs/",
    ".mew/pids.json",
    ".mew/run.json",
    ".mew/sessions/",
    ".mew/tokens/",
    "fifos/",
)
"""Files of a space that do not belong in version control."""

_PLAIN_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]*")
_YAML_WORDS: Final = ("yes", "no", "on", "off", "true", "false", "null", "y", "n")

_FOLDERS: Final = ("agents", "logs", "fifos", "tokens")


def init(
    template: Annotated[str | None, typer.Argument(metavar="TEMPLATE", help="Name of the template.")] = None,
    *,
    name: Annotated[str | None, option("--name ID", "Space id (default: the folder's name).")] = None,
    model: Annotated[str | None, option("--model NAME", "Model of the agents; a built-in model needs no key.")] = None,
    description: Annotated[str | None, option("--description TEXT", "Description of the space.")] = None,
    force: Annotated[bool, option("--force", "Overwrite the space of this folder.")] = False,
    list_templates: Annotated[bool, option("--list-templates", "List the templates.")] = False,
    template_info: Annotated[str | None, option("--template-info TEMPLATE", "Describe a template.")] = None,
    template_option: Annotated[str | None, option("--template TEMPLATE", hidden=True)] = None,
    port: Annotated[str | None, option("--port PORT", hidden=True)] = None,
) -> None:
    """Create a space in this folder from a template.

    Writes space.yaml, with a person named after you, and programs to `.mew/agents`. Also finds templates in ./templates
    and ~/.mew/templates. In a terminal, asks for missing values; otherwise uses the environment and the defaults.
    Secrets stay in the environment. --json requires --list-templates or --template-info.
    """
    folder = Path.cwd()
    templates = find_templates(folder, Path.home())
    if template is not None and template_option not in (None, template):
        raise ConfigError("--template", f"cannot be combined with TEMPLATE '{template}'")
    if list_templates:
        _list(templates)
        return
    if template_info is not None:
        _describe(_chosen(template_info, templates))
        return
    if OUTPUT.is_json:
        raise ConfigError("--json", "requires --list-templates or --template-info")
    _refuse_to_overwrite(folder, force=force)
    if port is not None:
        terminal.warn("--port has no effect here; give it to `mew up`")
    given = {"SPACE_NAME": name, "AGENT_MODEL": model, "SPACE_DESCRIPTION": description}
    asks = terminal.is_terminal(sys.stdin) and terminal.is_terminal(sys.stdout)
    chosen = _chosen(template or template_option or _ask_which(templates, asks=asks), templates)
    _create(chosen, folder, {key: value for key, value in given.items() if value}, asks=asks)


def _list(templates: Mapping[str, Template]) -> None:
    if OUTPUT.is_json:
        rows = [{"name": one.name, "origin": one.origin, "description": _headline(one)} for one in templates.values()]
        terminal.print_json(rows)
        return
    width = max(len(one) for one in templates)
    terminal.print_lines(f"{one.name:<{width}}  {one.origin:<8}  {_headline(one)}" for one in templates.values())


def _create(template: Template, folder: Path, given: dict[str, str], *, asks: bool) -> None:
    variables = template.description().variables
    user = _user()
    specials = {"dirname": folder.name, "username": user, "date": date.today().isoformat()}
    given = {PERSON_NAME: _person(user, template), **given}
    values = choose_values(variables, given, specials, os.environ, _ask if asks else None)
    where = template.folder / SPACE_FILE
    text = render(template.text(), values, variables, where=str(where))
    space = parse_space(text, path=where)  # before the first file is written, so that an error leaves no files
    state = folder / STATE_NAME
    make_private_folder(state)
    for part in _FOLDERS:
        make_private_folder(state / part)
    (state / "tokens" / ".gitignore").write_text("*\n", encoding="utf-8")
    for file in template.agent_files():
        (state / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(template.folder / file, state / file)
    path = space_file_in(folder) or folder / (Path(state.name, SPACE_FILE) if is_reference(os.environ) else SPACE_FILE)
    path.write_text(text, encoding="utf-8")
    _ignore(folder / ".gitignore")
    written = relative_to(folder, path)
    terminal.print_line(f"created '{values[SPACE_NAME]}' in {written} from the template '{template.name}'")
    terminal.print_line(f"  participants: {', '.join(space.participants)}")
    agents = (one.section(AGENT_KEY) for one in space.participants.values())
    if any(agent is not None and not is_builtin(agent.base_url) for agent in agents):
        _print_secrets(variables)
    terminal.print_line("next: mew up -i (start and join it), or mew up")


def _print_secrets(variables: tuple[TemplateVariable, ...]) -> None:
    for variable in variables:
        if variable.is_secret and variable.env_sources:
            found = next((one for one in variable.env_sources if os.environ.get(one)), None)
            todo = f"not set; export {variable.env_sources[0]} before `mew up`"
            state = f"read from {found} when the space starts" if found else todo
            terminal.print_line(f"  {variable.description}: {state}")
            if found is None:
                _suggest_keyless_model()


def _suggest_keyless_model() -> None:
    if (name := keyless_model()) is not None and (model := builtin_model(name)) is not None:
        notice = f" ({model.notice})" if model.notice else ""
        terminal.print_line(f"  or use a model without a key: `mew init --force --model {name}`{notice}")


def _refuse_to_overwrite(folder: Path, *, force: bool) -> None:
    here = space_file_in(folder)
    if here is not None and not force:
        raise ConfigError(str(here.relative_to(folder)), "already exists; --force overwrites it")
    found = find_run(folder)
    if found is not None and found[1].is_alive:
        raise ConfigError(found[1].space, "is running in this folder; stop it with `mew down`")


def _chosen(name: str, templates: dict[str, Template]) -> Template:
    if name not in templates:
        raise unknown_name("TEMPLATE", f"no template '{name}'", name, templates)
    return templates[name]


def _ask_which(templates: dict[str, Template], *, asks: bool) -> str:
    if not asks:
        return DEFAULT_TEMPLATE
    names = list(templates)
    for number, name in enumerate(names, 1):
        terminal.print_line(f"  {number}  {name}: {_headline(templates[name])}")
    answer = str(typer.prompt("Template", default=DEFAULT_TEMPLATE)).strip()
    return names[int(answer) - 1] if answer.isdigit() and 0 < int(answer) <= len(names) else answer


def _ask(variable: TemplateVariable, default: str) -> str:
    return str(typer.prompt(variable.description or variable.name, default=default, show_default=bool(default)))


def _describe(template: Template) -> None:
    about, readme = template.description(), template.readme()
    if OUTPUT.is_json:
        head = {"name": template.name, "origin": template.origin}
        terminal.print_json({**head, **about.model_dump(mode="json"), "readme": readme})
        return
    terminal.print_line(f"{template.name} ({template.origin}): {about.description or 'no description'}")
    for label, value in (("version", about.version), ("author", about.author), ("tags", ", ".join(about.tags))):
        if value:
            terminal.print_line(f"  {label}: {value}")
    for variable in about.variables:
        source = f"; from {', '.join(variable.env_sources)}" if variable.env_sources else ""
        secret = "; never stored" if variable.is_secret else ""
        terminal.print_line(f"  {variable.name}: {variable.description}{source}{secret}")
    if readme is not None:
        terminal.print_line(f"\n{readme.rstrip()}")


def _headline(template: Template) -> str:
    try:
        return template.description().description
    except ConfigError as error:
        return f"(cannot be used: {error})"


def _ignore(path: Path) -> None:
    """Add the missing lines to a .gitignore and change nothing else."""
    known = path.read_text(encoding="utf-8") if path.exists() else ""
    gap = "" if not known or known.endswith("\n") else "\n"
    if missing := [line for line in IGNORED if line not in known.splitlines()]:
        path.write_text(known + gap + "\n".join(missing) + "\n", encoding="utf-8")


def _person(user: str, template: Template) -> str:
    """Return the person's id: the user name, or `human` if that is not a valid id in this template."""
    is_taken = f"\n  {user}:" in f"\n{template.text()}"
    is_plain = _PLAIN_NAME.fullmatch(user) is not None and user not in _YAML_WORDS
    return user if is_plain and not is_taken and not is_reference(os.environ) else "human"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return "user"
