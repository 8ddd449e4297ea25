"""Templates of spaces: their folders, their values, and the resulting space.yaml.

Parts and other packages add folders of templates by entry points of the group `mew_agent.templates`.

A template is a folder with a space.yaml, an optional template.json that describes its variables, and an optional
agents/ folder. In space.yaml `{{NAME}}` stands for a value and `{{NAME_JSON}}` for the value as a JSON string (`null`
if it is empty). Fills in the values, but no secrets. Writes nothing.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mew_protocol.ids import MAX_ID_LENGTH, id_problem
from mew_settings.plugins import load_table
from mew_settings.setting_problems import first_problem, unreadable
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mew_agent.cli.app.locate import SPACE_FILE
from mew_agent.errors import ConfigError
from mew_agent.model.builtin import is_builtin

BUILT_IN: Final = Path(__file__).parents[2] / "templates"
DEFAULT_TEMPLATE: Final = "coder-agent"
DESCRIPTION_FILE: Final = "template.json"
SPACE_NAME: Final = "SPACE_NAME"
PERSON_NAME: Final = "PERSON_NAME"
AGENT_MODEL: Final = "AGENT_MODEL"

_PLACEHOLDER: Final = re.compile(r"\{\{\s*([A-Z][A-Z0-9_]*)\s*\}\}")
_SPECIAL: Final = re.compile(r"\$\{(dirname|username|date)\}")
_SECRET_NAME: Final = re.compile(r"_(API_KEY|SECRET|PASSWORD)$")
_AS_JSON: Final = "_JSON"

Ask = Callable[["TemplateVariable", str], str]
"""Asks the user for the value of a variable, given its default."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class TemplateVariable(_Section):
    """A value that a template needs. A `sensitive` value stays in the environment and is never written to a file."""

    name: str = Field(pattern=r"^[A-Z][A-Z0-9_]*$")
    description: str = ""
    default: str = ""
    prompt: bool = False
    sensitive: bool = False
    env_sources: tuple[str, ...] = ()

    @property
    def is_secret(self) -> bool:
        """True if its value must stay in the environment."""
        return self.sensitive or _SECRET_NAME.search(self.name) is not None


class TemplateDescription(_Section):
    """The content of template.json."""

    description: str = ""
    version: str = ""
    author: str = ""
    tags: tuple[str, ...] = ()
    variables: tuple[TemplateVariable, ...] = ()


@dataclass(frozen=True, slots=True)
class Template:
    """A folder to create a space from. `origin` is `built-in`, `local` or `yours`."""

    name: str
    folder: Path
    origin: str

    def description(self) -> TemplateDescription:
        """Its description; empty without a template.json. Raises `ConfigError`."""
        path = self.folder / DESCRIPTION_FILE
        try:
            return TemplateDescription.model_validate(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return TemplateDescription()
        except ValidationError as error:
            raise ConfigError(str(path), first_problem(error)) from None
        except (OSError, ValueError) as error:
            raise ConfigError(str(path), f"cannot be read: {error}") from None

    def text(self) -> str:
        """Its space.yaml with placeholders. Raises `ConfigError`."""
        path = self.folder / SPACE_FILE
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(str(path), unreadable(error)) from None

    def readme(self) -> str | None:
        """Its README, if there is one."""
        path = self.folder / "README.md"
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None

    def agent_files(self) -> Iterator[Path]:
        """Yield the files in agents/, relative to the template's folder."""
        for path in sorted((self.folder / "agents").rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(self.folder)


def find_templates(folder: Path, home: Path) -> dict[str, Template]:
    """Return all templates by name. The working folder's override the user's, and both override the built-in ones."""
    found: dict[str, Template] = {}
    added = ((place, "built-in") for place in load_table("mew_agent.templates").values())
    places = ((BUILT_IN, "built-in"), *added, (home / ".mew" / "templates", "yours"), (folder / "templates", "local"))
    for place, origin in places:
        for path in sorted(place.glob(f"*/{SPACE_FILE}")):
            name = path.parent.name
            found[name] = Template(name, path.parent, origin)
    # The default first, then by name.
    return {name: found[name] for name in sorted(found, key=lambda name: (name != DEFAULT_TEMPLATE, name))}


def choose_values(
    variables: Sequence[TemplateVariable],
    given: Mapping[str, str],
    specials: Mapping[str, str],
    environ: Mapping[str, str],
    ask: Ask | None = None,
) -> dict[str, str]:
    """Choose a value for each variable that is not secret: given, asked for, from the environment, or the default.

    `specials` are the values of `${dirname}`, `${username}` and `${date}` in defaults. A built-in model needs
    its own server, so the two are set together. Raises `ConfigError` for an invalid space id.
    """
    values = {
        "SPACE_DESCRIPTION": "",
        "UI_THEME": "",
        PERSON_NAME: "human",
        SPACE_NAME: _valid_id(specials["dirname"]),
        **given,
    }
    for variable in variables:
        if variable.is_secret or variable.name in given:
            continue
        value = next((environ[name] for name in variable.env_sources if environ.get(name)), None)
        if value is None:
            value = _SPECIAL.sub(lambda match: specials[match[1]], variable.default)
            value = _valid_id(value) if variable.name == SPACE_NAME else value
        if variable.name == "AGENT_BASE_URL" and is_builtin(values.get(AGENT_MODEL)):
            value = values[AGENT_MODEL]
        elif ask is not None and variable.prompt:
            value = ask(variable, value)
        values[variable.name] = value
    problem = id_problem(values[SPACE_NAME])
    if problem:
        raise ConfigError("--name", f"'{values[SPACE_NAME]}' is not a valid space id: {problem}")
    return values


def render(text: str, values: Mapping[str, str], variables: Sequence[TemplateVariable], *, where: str) -> str:
    """Fill the placeholders of a template. Secrets are left empty. Raises `ConfigError` for an unknown variable."""
    secrets = {variable.name for variable in variables if variable.is_secret}

    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        plain = name.removesuffix(_AS_JSON)
        for candidate, as_json in ((name, False), (plain, True)):
            if candidate in secrets or _SECRET_NAME.search(candidate):
                return "null" if as_json and candidate != name else ""
            if candidate in values and as_json:
                return json.dumps(values[candidate], ensure_ascii=False) if values[candidate] else "null"
            if candidate in values:
                return values[candidate]
        line = text.count("\n", 0, match.start()) + 1
        raise ConfigError(f"{where}:{line}", f"unknown variable '{name}'", ", ".join(sorted(values)))

    return _PLACEHOLDER.sub(fill, text)


def _valid_id(text: str) -> str:
    """Return a folder's name as an id: characters that an id may not contain become dashes."""
    name = re.sub(r"[^\w.-]+|\.{2,}", "-", text).strip("-.")[:MAX_ID_LENGTH]
    return name if name and id_problem(name) is None else "space"
