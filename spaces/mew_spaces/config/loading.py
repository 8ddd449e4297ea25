"""Reads space.yaml into `settings.SpaceConfig`. Every error names the file, the line and the column.

Converts the text to the model, and mistakes to positions. Others use the values: `auth` makes tokens, the supervisor
starts programs, and `mew_protocol.capability` reads capability patterns.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from mew_protocol.expectations import expectation
from mew_settings.participant_types import participant_types
from mew_settings.setting_problems import did_you_mean, known_keys, unreadable
from mew_settings.yaml_mistakes import colon_hint
from mew_settings.yaml_text import YamlProblem, YamlText, pair_of
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mew_spaces.config.lookalikes import alike
from mew_spaces.config.settings import ParticipantConfig, SpaceConfig
from mew_spaces.errors import SpaceConfigError

__all__ = [
    "ParticipantConfig",
    "SpaceConfig",
    "load_space",
    "parse_space",
    "place_in",
    "with_participant",
    "without_participant",
]

_PLAIN_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")

_VARIABLE = re.compile(r"\$\{\w+\}")

_KEY_MARK = "[key]"
"""The last step of pydantic's location for an error in a key of a mapping."""


def load_space(path: Path | str) -> SpaceConfig:
    """Read and check a space.yaml. Raises `SpaceConfigError` with file, line, column and the expected value."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpaceConfigError(path, "no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpaceConfigError(path, unreadable(error)) from None
    return parse_space(text, path=path)


def parse_space(text: str, *, path: Path | str = "space.yaml") -> SpaceConfig:
    """Read and check the text of a space.yaml; errors name `path`. Raises `SpaceConfigError`."""
    document = _Document(text, Path(path))
    try:
        config = SpaceConfig.model_validate(document.value)
    except ValidationError as error:
        first, *others = error.errors(include_url=False)
        unknown = (one for one in others if one["type"] == "extra_forbidden" and one["loc"][:-1] == first["loc"][:-1])
        # An unknown key may be a misspelling of the one that is missing in the same place.
        raise document.error_of(next(unknown, first) if first["type"] == "missing" else first) from None
    _check_across(config, document)
    return config


def place_in(path: Path | str, place: Sequence[int | str]) -> str:
    """Return file:line:column of a value (keys and indexes), or of the nearest value above it that exists."""
    try:
        error = positions_of(Path(path).read_text(encoding="utf-8"), Path(path)).error_at(place, "")
    except (OSError, UnicodeDecodeError, SpaceConfigError):
        return str(path)
    return str(path) if error.line is None else f"{path}:{error.line}:{error.column}"


def with_participant(text: str, name: str, settings: Mapping[str, Any], *, path: Path | str = "space.yaml") -> str:
    """Add a participant at the end of the text, and change nothing else. Raises `SpaceConfigError` if impossible."""
    document = _Document(text, Path(path))
    line, indent = document.end_of("participants", name)
    # JSON is valid YAML, so no YAML writer is needed.
    is_plain = _PLAIN_KEY.fullmatch(name) is not None and yaml.safe_load(name) == name
    written = [f"{name if is_plain else json.dumps(name, ensure_ascii=False)}:"]
    written += [f"  {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()]
    lines = text.splitlines()
    if line is None:
        lines += ["participants:"]
        line = len(lines)
    lines[line:line] = [" " * indent + one for one in written]
    changed = "\n".join(lines) + "\n"
    parse_space(changed, path=path)
    return changed


def without_participant(text: str, name: str, *, path: Path | str = "space.yaml") -> str:
    """Remove a participant from the text, and change nothing else. Raises `SpaceConfigError` if another key refers to
    it.
    """
    document = _Document(text, Path(path))
    begin, end = document.lines_of("participants", name)
    lines = text.splitlines(keepends=True)
    changed = "".join([*lines[:begin], *lines[end:]])
    parse_space(changed, path=path)
    return changed


def _check_across(config: SpaceConfig, document: "_Document") -> None:
    """Check rules across keys: names must exist, tokens must be unique."""

    def check_name(name: str, *place: str) -> None:
        if name not in config.participants:
            problem = f"no participant '{name}' under 'participants'{did_you_mean(name, config.participants)}"
            raise document.error_at(place, problem)

    if config.space.default_participant is not None:
        check_name(config.space.default_participant, "space", "default_participant")
    names = tuple(config.participants)
    for at, name in enumerate(names):
        if not name.isascii() and (other := alike(name, (*names[:at], *names[at + 1 :]))) is not None:
            problem = f"'{name}' looks like '{other}'; choose an id that people can tell from it"
            raise document.error_at(("participants", name), problem)
    owners: dict[str, str] = {}
    for name, participant in config.participants.items():
        key = participant.type_key
        if key is not None:
            for place, mentioned in participant_types()[key].mentions(participant.section(key)):
                check_name(mentioned, "participants", name, key, *place)
        for index, token in enumerate(participant.tokens):
            if owners.setdefault(token, name) != name:
                problem = f"'{name}' and '{owners[token]}' have the same token; give each participant its own"
                raise document.error_at(("participants", name, "tokens", index), problem)


class _Document:
    """A YAML text as a value, with the line and column of each part."""

    def __init__(self, text: str, path: Path) -> None:
        self.path = path
        self._text = text
        try:
            self._parsed = YamlText(text)
        except YamlProblem as error:
            raise SpaceConfigError(path, error.problem, error.line, error.column) from None
        self.value: Any = self._parsed.value

    def error_at(self, place: Sequence[int | str], problem: str, *, at_key: bool = False) -> SpaceConfigError:
        """Return an error at the position of a value, or of the nearest value above it."""
        return self._error(problem, self._parsed.mark_at(place, at_key=at_key))

    def error_of(self, detail: ErrorDetails) -> SpaceConfigError:
        """Return a validation error in terms of the file."""
        place = tuple(self._steps(detail["loc"]))
        if place and place[-1] == _KEY_MARK:
            return self.error_at(place[:-1], f"{_dotted(place[:-1])}: {expectation(detail)}", at_key=True)
        under, name = _dotted(place[:-1]), str(place[-1]) if place else ""
        beneath = f" under {under}" if under else ""
        match detail["type"]:
            case "extra_forbidden":
                hint = _advice(name, place[:-1])
                return self.error_at(place, f"unknown key '{name}'{beneath}{hint}", at_key=True)
            case "missing":
                return self.error_at(place[:-1], f"'{name}' is missing{beneath}")
            case "model_type" | "dict_type" if not place:
                return self.error_at(place, "must be a mapping with the keys 'space' and 'participants'")
        return self.error_at(place, f"{_dotted(place)}: {expectation(detail)}{_hint(detail)}")

    def end_of(self, section: str, new_key: str) -> tuple[int | None, int]:
        """Return the line after a block mapping (None without one) and its indentation. Raises an error if it cannot be
        extended.
        """
        node = _value_of(self._parsed.root, section)
        if node is None:
            return None, 2
        if not isinstance(node, yaml.MappingNode) or node.flow_style or not node.value:
            problem = f"'{section}' is written in one line; add '{new_key}' by hand"
            raise self.error_at((section,), problem, at_key=True)
        if any(key.value == new_key for key, _ in node.value):
            raise self.error_at((section, new_key), f"'{new_key}' already exists; choose another id", at_key=True)
        lines = self._text.splitlines()[: node.end_mark.line + (node.end_mark.column > 0)]
        while not lines[-1].strip() or lines[-1].lstrip().startswith("#"):
            lines.pop()
        return len(lines), node.value[0][0].start_mark.column

    def lines_of(self, section: str, key: str) -> tuple[int, int]:
        """Return the first line of an entry of a block mapping and the line after it, counted from 0."""
        node = _value_of(self._parsed.root, section)
        pair = pair_of(node, key)
        if node is None or pair is None:
            raise self.error_at((section,), f"no '{key}' under '{section}'", at_key=True)
        if node.flow_style or len(node.value) == 1:
            problem = "written in one line" if node.flow_style else "the only entry"
            raise self.error_at((section, key), f"'{key}' is {problem}; remove it by hand", at_key=True)
        begin, end = pair[0].start_mark.line, pair[1].end_mark.line + (pair[1].end_mark.column > 0)
        lines = self._text.splitlines()
        while end > begin + 1 and not lines[end - 1].startswith(" " * (pair[0].start_mark.column + 1)):
            end -= 1  # comments and empty lines before the next entry belong to that entry
        return begin, end

    def _steps(self, location: Sequence[int | str]) -> Iterator[int | str]:
        """Yield the steps of a location without pydantic's names of union branches and its key marks."""
        node: Any = self.value
        for step in location:
            if isinstance(node, Mapping):
                if step in node or step == location[-1]:
                    yield step
                    node = node.get(step)
            elif isinstance(node, Sequence) and not isinstance(node, str) and isinstance(step, int):
                yield step
                node = node[step] if step < len(node) else None

    def _error(self, problem: str, mark: yaml.Mark | None) -> SpaceConfigError:
        position = () if mark is None else (mark.line + 1, mark.column + 1)
        return SpaceConfigError(self.path, problem, *position)


@lru_cache(maxsize=1)
def positions_of(text: str, path: Path) -> _Document:
    """Return a text with its positions. Caches the newest text, because callers look up many places of one file in
    turn.
    """
    return _Document(text, path)


def _value_of(node: yaml.Node | None, key: str) -> Any:
    pair = pair_of(node, key)
    return None if pair is None else pair[1]


def _advice(name: str, place: Sequence[int | str]) -> str:
    """Return the advice for an unknown key: a similar key, its right place, or all keys."""
    known = known_keys(SpaceConfig, place)
    if not known:
        return ""
    is_of_participant = len(place) == 2 and place[0] == "participants"
    types = [*participant_types()] if is_of_participant else []
    owners = [key for key in types if name in known_keys(SpaceConfig, (*place, key))]
    if owners:
        return f"; it belongs one level deeper, under '{'agent' if 'agent' in owners else owners[0]}'"
    if len(place) > 2 and name in known_keys(SpaceConfig, place[:-1]):
        return f"; it belongs one level higher, under {_dotted(place[:-1])}"
    return colon_hint(name) or did_you_mean(name, known) or f"; expected one of {', '.join(known)}"


def _hint(detail: ErrorDetails) -> str:
    """Return the advice for a wrong value with a likely intention."""
    found = detail["input"]
    if not isinstance(found, str):
        return ""
    variable = _VARIABLE.search(found)
    if variable is not None:
        return f"; {variable[0]} is not replaced here, write the value"
    return colon_hint(found) if detail["type"] in ("model_type", "dict_type") else ""


def _dotted(place: Sequence[int | str]) -> str:
    return ".".join(str(step) for step in place)
