"""Reads capabilities from the command line, and warns about them.

Imports no client of the gateway: the start of a space needs the warnings.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from mew_protocol import kinds
from mew_protocol.capability import CapabilityPattern, CapabilitySet, as_texts, has_kind, patterns_problem
from mew_protocol.envelope import Draft
from mew_settings.setting_problems import did_you_mean, first_problem
from pydantic import ValidationError

from mew_agent.cli.app import terminal
from mew_agent.errors import ConfigError

_CAPABILITY_FORMS: Final = """chat, '{"kind": "chat"}', or a list of these in JSON"""


def _read_patterns(where: str, text: str) -> Iterator[dict[str, Any]]:
    """Read one text as patterns: a kind, or JSON. Raises `ConfigError`."""
    try:
        value = json.loads(text) if text.startswith(("{", "[", '"')) else text
    except ValueError as error:
        raise ConfigError(where, f"is not JSON: {error}", _CAPABILITY_FORMS) from None
    for one in value if isinstance(value, list) and value else [value]:
        pattern = {"kind": one} if isinstance(one, str) else one
        if not isinstance(pattern, dict) or not pattern.get("kind"):
            raise ConfigError(where, f"has no kind: {json.dumps(one)}", _CAPABILITY_FORMS)
        yield pattern


def read_capabilities(where: str, *texts: str, to: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Read capabilities as patterns: each text is a kind, or JSON with a kind, a pattern, or a list of these.

    `to` limits them to these participants. Raises `ConfigError` that names the option or argument `where`.
    """
    from mew_spaces.config.settings import Capability  # the models of space.yaml take 20 ms to load

    read = [pattern for text in texts for pattern in _read_patterns(where, text)]
    patterns = [{**pattern, "to": list(to)} for pattern in read] if to else read
    if (found := patterns_problem(patterns)) is not None:
        index, problem = found
        raise ConfigError(where, problem if index is None else f"pattern {index + 1}: {problem}")
    try:
        for pattern in patterns:
            Capability.model_validate(pattern)
    except ValidationError as error:
        raise ConfigError(where, first_problem(error, hidden_steps=("str",)), _CAPABILITY_FORMS) from None
    return patterns


def _unknown_kinds(pattern: CapabilityPattern) -> list[str]:
    """Return the kinds in a pattern that match none of the known ones. They belong to a program, or are misspelled."""
    held = {one: CapabilitySet([{"kind": one}]) for one in (as_texts(pattern["kind"]) if has_kind(pattern) else ())}
    return [name for name, kind in held.items() if not any(kind.allows(Draft(kind=known)) for known in kinds.KNOWN)]


def unknown_kind_warnings(patterns: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a warning for each kind in these patterns that the protocol does not have."""
    for pattern in patterns:
        for kind in _unknown_kinds(pattern):
            hint = did_you_mean(kind, kinds.KNOWN)
            yield f"the protocol has no kind '{kind}'{hint}; only your own programs can send it"


def warn_of_unknown_kinds(patterns: Iterable[Mapping[str, Any]]) -> None:
    """Print the warnings about kinds that are probably misspelled."""
    for warning in unknown_kind_warnings(patterns):
        terminal.warn(warning)
