"""`mew grant` and `mew revoke`: change what a participant may send while the space runs.

Owns how capabilities are written on the command line. What may be granted is decided by the gateway.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer
from mew_protocol import kinds
from mew_protocol.capability import patterns_problem

from mew_agent.cli.app import terminal
from mew_agent.cli.app.options import (
    ConnectionOptions,
    JsonOption,
    ReasonOption,
    TargetArgument,
    option,
    with_option_groups,
)
from mew_agent.cli.remote.request import NoSuchParticipant
from mew_agent.cli.remote.session import ApiSession, open_session
from mew_agent.errors import ConfigError

_EXPECTED: Final = """chat, '{"kind": "chat"}', or a list of these in JSON"""


@dataclass(frozen=True, slots=True)
class CapabilityChange:
    """A change of what a participant may send, as given on the command line."""

    recipient: TargetArgument
    written: Annotated[
        list[str], typer.Argument(metavar="CAPABILITY", help="Kind such as `mcp/proposal`, or a pattern in JSON.")
    ]
    to: Annotated[list[str] | None, option("--to ID", "Only what is sent to this participant; repeatable.")] = None
    as_json: JsonOption = False
    reason: ReasonOption = None

    def patterns(self) -> list[dict[str, Any]]:
        """The capabilities as patterns. Raises `ConfigError`."""
        return read_capabilities("CAPABILITY", *self.written, to=self.to or ())


@with_option_groups
def grant(change: CapabilityChange, connection: ConnectionOptions) -> None:
    """Allow a participant to send more.

    A grant ends when the participant has been away for five seconds. To make it permanent, write it in space.yaml.
    """
    session, recipient, patterns = open_session(connection), change.recipient, change.patterns()
    _capabilities_of(session, recipient)
    _send(session, kinds.CAPABILITY_GRANT, recipient, patterns, change.reason)
    outcome = {"participant": recipient, "granted": patterns}
    terminal.print_outcome(f"{recipient}: may now send {_names(patterns)}", outcome, as_json=change.as_json)
    if change.as_json:
        return
    terminal.print_line("  it ends when the participant leaves; to keep it, add to space.yaml, under its capabilities:")
    terminal.print_lines(f"  - {json.dumps(pattern)}" for pattern in patterns)


@with_option_groups
def revoke(change: CapabilityChange, connection: ConnectionOptions) -> None:
    """Revoke capabilities granted to a participant.

    Capabilities from space.yaml or an invitation stay.
    """
    session, recipient, patterns = open_session(connection), change.recipient, change.patterns()
    before = _capabilities_of(session, recipient)
    _send(session, kinds.CAPABILITY_REVOKE, recipient, patterns, change.reason)
    if _capabilities_of(session, recipient) == before:
        raise ConfigError(recipient, f"was not granted {_names(patterns)}; change in space.yaml what space.yaml grants")
    outcome = {"participant": recipient, "revoked": patterns}
    terminal.print_outcome(f"{recipient}: {_names(patterns)} revoked", outcome, as_json=change.as_json)


def _send(session: ApiSession, kind: str, recipient: str, patterns: list[dict[str, Any]], reason: str | None) -> None:
    payload = {"recipient": recipient, "capabilities": patterns}
    session.api.send({"kind": kind, "payload": {**payload, "reason": reason} if reason else payload})


def _capabilities_of(session: ApiSession, name: str) -> Any:
    """What a participant may send. Raises `NoSuchParticipant`."""
    found = {str(one.get("id")): one.get("capabilities") for one in session.api.participants()}
    if name not in found:
        raise NoSuchParticipant(name, session.api.space, [*found])
    return found[name]


def read_capabilities(where: str, *texts: str, to: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Read capabilities as patterns: each text is a kind, or JSON with a kind, a pattern, or a list of these.

    `to` limits them to these participants. Raises `ConfigError` that names the option or argument `where`.
    """
    patterns: list[dict[str, Any]] = []
    for text in texts:
        try:
            value = json.loads(text) if text.startswith(("{", "[", '"')) else text
        except ValueError as error:
            raise ConfigError(where, f"is not JSON: {error}", _EXPECTED) from None
        for one in value if isinstance(value, list) and value else [value]:
            pattern = {"kind": one} if isinstance(one, str) else one
            if not isinstance(pattern, dict) or "kind" not in pattern:
                raise ConfigError(where, f"has no kind: {json.dumps(one)}", _EXPECTED)
            patterns.append({**pattern, "to": list(to)} if to else pattern)
    if (found := patterns_problem(patterns)) is not None:
        index, problem = found
        raise ConfigError(where, problem if index is None else f"pattern {index + 1}: {problem}")
    return patterns


def _names(patterns: list[dict[str, Any]]) -> str:
    texts = []
    for pattern in patterns:
        kinds_named = pattern["kind"] if isinstance(pattern["kind"], str) else ", ".join(pattern["kind"])
        to = pattern.get("to")
        texts.append(f"{kinds_named} to {', '.join([to] if isinstance(to, str) else to)}" if to else kinds_named)
    return ", ".join(texts)
