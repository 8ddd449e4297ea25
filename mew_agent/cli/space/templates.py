"""Templates of spaces: where they are found, what they ask for, and the space.yaml they make.

A template is a folder with a space.yaml that holds `{{NAME}}` and `{{NAME_JSON}}` (the value as a JSON string, `null`
when it is empty), perhaps a template.json that names its variables, and perhaps agents/. Owns the values' order of
places and that no secret is ever put into a text. Writes nothing.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mew_protocol.agent_settings import REHEARSAL
from mew_protocol.ids import MAX_ID_LENGTH, id_problem
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mew_agent.errors import ConfigError

BUILT_IN: Final = Path(__file__).parents[2] / "templates"
DEFAULT_TEMPLATE: Final = "coder-agent"
DESCRIPTION_FILE: Final = "template.json"
SPACE_FILE: Final = "space.yaml"
SPACE_NAME: Final = "SPACE_NAME"
AGENT_MODEL: Final = "AGENT_MODEL"

_PLACEHOLDER: Final = re.compile(r"\{\{\s*([A-Z][A-Z0-9_]*)\s*\}\}")
_SPECIAL: Final = re.compile(r"\$\{(dirname|username|date)\}")
_SECRET_NAME: Final = re.compile(r"_(API_KEY|SECRET|PASSWORD)$")
_AS_JSON: Final = "_JSON"

Ask = Callable[["Variable", str], str]
"""Asks a person for a variable's value, given its default."""


class _Description(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Variable(_Description):
    """A value that a template wants. A `sensitive` one stays in the environment and is never written anywhere."""

    name: str = Field(pattern=r"^[A-Z][A-Z0-9_]*$")
    description: str = ""
    default: str = ""
    prompt: bool = False
    sensitive: bool = False
    env_sources: tuple[str, ...] = ()

    @property
    def is_secret(self) -> bool:
        """Whether its value must stay where it is."""
        return self.sensitive or _SECRET_NAME.search(self.name) is not None


class Facts(_Description):
    """What template.json says."""

    description: str = ""
    version: str = ""
    author: str = ""
    tags: tuple[str, ...] = ()
    variables: tuple[Variable, ...] = ()


@dataclass(frozen=True, slots=True)
class Template:
    """A folder that a space can be made from. `origin` is `built-in`, `local` or `yours`."""

    name: str
    folder: Path
    origin: str

    def facts(self) -> Facts:
        """What it says of itself; nothing when it has no template.json. Raises `ConfigError`."""
        path = self.folder / DESCRIPTION_FILE
        try:
            return Facts.model_validate(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return Facts()
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(step) for step in first["loc"])
            raise ConfigError(str(path), f"{place}: {first['msg']}") from None
        except (OSError, ValueError) as error:
            raise ConfigError(str(path), f"cannot be read: {error}") from None

    def text(self) -> str:
        """Its space.yaml as it stands. Raises `ConfigError`."""
        path = self.folder / SPACE_FILE
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(str(path), f"cannot be read: {error}") from None

    def readme(self) -> str | None:
        """What it tells its users, if it does."""
        path = self.folder / "README.md"
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None

    def agent_files(self) -> Iterator[Path]:
        """The files under agents/, relative to its folder."""
        for path in sorted((self.folder / "agents").rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(self.folder)


def find_templates(folder: Path, home: Path) -> dict[str, Template]:
    """Every template by name. Those of the working folder stand above the user's own, and both above ours."""
    found: dict[str, Template] = {}
    places = ((BUILT_IN, "built-in"), (home / ".mew" / "templates", "yours"), (folder / "templates", "local"))
    for place, origin in places:
        for path in sorted(place.glob(f"*/{SPACE_FILE}")):
            name = path.parent.name
            found[name] = Template(name, path.parent, origin)
    # The default one first, then by name.
    return {name: found[name] for name in sorted(found, key=lambda name: (name != DEFAULT_TEMPLATE, name))}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a variable's default may depend on: the folder's name, who the user is, the day, the environment."""

    folder_name: str
    user: str
    day: str
    environ: Mapping[str, str]


def settle_values(
    variables: Sequence[Variable],
    given: Mapping[str, str],
    around: Surroundings,
    ask: Ask | None = None,
) -> dict[str, str]:
    """A value for every variable that is no secret: given, else asked for, else from the environment, else the default.

    A rehearsal model needs its own server, so the two are set together. Raises `ConfigError` for an id that no
    space can have.
    """
    values = {"SPACE_DESCRIPTION": "", "UI_THEME": "", SPACE_NAME: _fitting_id(around.folder_name), **given}
    for variable in variables:
        if variable.is_secret or variable.name in given:
            continue
        value = next((around.environ[name] for name in variable.env_sources if around.environ.get(name)), None)
        if value is None:
            value = _fill_specials(variable.default, around)
            value = _fitting_id(value) if variable.name == SPACE_NAME else value
        if variable.name == "AGENT_BASE_URL" and values.get(AGENT_MODEL) == REHEARSAL:
            value = REHEARSAL
        elif ask is not None and variable.prompt:
            value = ask(variable, value)
        values[variable.name] = value
    problem = id_problem(values[SPACE_NAME])
    if problem:
        raise ConfigError("--name", f"'{values[SPACE_NAME]}' cannot be a space's id: {problem}")
    return values


def render(text: str, values: Mapping[str, str], variables: Sequence[Variable], *, where: str) -> str:
    """Fill a template's text. Secrets are left empty. Raises `ConfigError` for a name that no variable has."""
    secrets = {variable.name for variable in variables if variable.is_secret}

    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        plain = name.removesuffix(_AS_JSON)
        for candidate, as_json in ((name, False), (plain, True)):
            if candidate in secrets or _SECRET_NAME.search(candidate):
                return "null" if as_json and candidate != name else ""
            if candidate in values:
                return _as_json(values[candidate]) if as_json else values[candidate]
        line = text.count("\n", 0, match.start()) + 1
        raise ConfigError(f"{where}:{line}", f"there is no variable '{name}'", ", ".join(sorted(values)))

    return _PLACEHOLDER.sub(fill, text)


def _as_json(value: str) -> str:
    return json.dumps(value, ensure_ascii=False) if value else "null"


def _fill_specials(text: str, around: Surroundings) -> str:
    known: dict[str, Any] = {"dirname": around.folder_name, "username": around.user, "date": around.day}
    return _SPECIAL.sub(lambda match: str(known[match.group(1)]), text)


def _fitting_id(text: str) -> str:
    """A folder's name made into an id: what an id may not hold becomes a dash."""
    name = re.sub(r"[^\w.-]+|\.{2,}", "-", text).strip("-.")[:MAX_ID_LENGTH]
    return name if name and id_problem(name) is None else "space"
