"""[pure] A proposal as shown to a person for a decision: everything that would run, with visible marks for invisible
characters.

Owns the words of the proposed call, the display of its parts, and the meaning of "always allow". Every surface that
offers an approval uses these, so none shows less than another.
"""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mew_protocol import kinds
from mew_protocol.capability import OWN_CALLS_ONLY, may_approve
from mew_protocol.envelope import Envelope
from mew_protocol.json_values import object_at, value_at
from mew_protocol.patterns import is_literal
from mew_protocol.payloads.attention_items import TextChange
from mew_protocol.payloads.mcp import COMPACT_CONTEXT, CallSubject, UndecidedProposal, arguments_of

from mew_board.text_changes import changes_in
from mew_board.visible import shortened, visible

ALL_SHOWN: Final = "`mew proposals` shows all"
"""Where a person can read the omitted parts of a short text."""

_SUBJECT_CHARS: Final = 100


def is_compaction(proposal: Envelope) -> bool:
    """Return True if an agent proposes to compact its own context."""
    is_own = proposal.addressees == (proposal.sender,)
    return is_own and CallSubject.read(proposal.body).tool == COMPACT_CONTEXT


def rejections(proposal: UndecidedProposal) -> str:
    """Return the participants that rejected an open proposal, as the end of a sentence; empty if there are none."""
    return f"; rejected by {', '.join(proposal.rejected_by)}" if proposal.rejected_by else ""


def call_text(proposal: Envelope) -> str:
    """Return the call and its target: `write on files`."""
    method, tool = CallSubject.read(proposal.body)
    where = f" on {', '.join(proposal.addressees)}" if proposal.addressees else " on any participant"
    return visible(f"{tool or method}") + visible(where)


def argument_lines(body: Mapping[str, Any]) -> list[str]:
    """Return the arguments of a proposed call, all of them.

    First JSON in one line, then each text of several lines, then changes as diffs. `body` is the payload. For methods
    other than a tool call, the arguments are the parameters. Tabs become four spaces.
    """
    given = arguments_of(body)
    changes = changes_in(given)
    further = further_params(body)
    more = [f"further parameters: {_json(further)}"] if further else []
    if given is not None and not isinstance(given, Mapping):
        return [_json(given), *more]
    return [*_record_lines(given or {}, "", changes), *more]


def _record_lines(record: Mapping[str, Any], place: str, changes: Mapping[str, TextChange]) -> list[str]:
    """Return a record with its changes; `place` as in `changes_in`."""
    plain, texts, lists, shown = dict(record), list[str](), list[str](), list[str]()
    if (change := changes.get(place)) is not None:
        shown = _change_lines(change)
        plain = {name: value for name, value in record.items() if name not in change.keys}
    for name, value in tuple(plain.items()):
        if _has_changes(name, value, place, changes):
            lists += _list_lines(name, plain.pop(name), changes)
        elif isinstance(value, str) and "\n" in value.strip():
            texts += _titled(visible(name), map(_line, plain.pop(name).split("\n")))
    blocks = [*texts, *lists, *shown]
    return [*([_json(plain)] if plain or not blocks else []), *blocks]


def _list_lines(name: str, values: Sequence[Any], changes: Mapping[str, TextChange]) -> list[str]:
    lines = list[str]()
    for at, one in enumerate(values):
        inner = _record_lines(one, f"{name}/{at}", changes) if isinstance(one, Mapping) else [_json(one)]
        lines += _titled(f"{visible(name)}[{at}]", inner)
    return lines


def _titled(title: str, lines: Iterable[str]) -> list[str]:
    return [f"{title}:", *(f"  {line}" for line in lines)]


def _has_changes(name: str, value: object, place: str, changes: Mapping[str, TextChange]) -> bool:
    return not place and isinstance(value, list | tuple) and any(f"{name}/{at}" in changes for at in range(len(value)))


def _change_lines(change: TextChange) -> list[str]:
    before, after = change.keys
    if not change.rows:
        return [f"{before} and {after} are the same text"]
    rows = (line if mark == "@" else f"{mark}{_line(line)}" for mark, line in change.rows)
    return [f"{before} -> {after}, {change.title}:", *(f"  {row}" for row in rows)]


def further_params(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a tool call that are neither its name nor its arguments."""
    if CallSubject.read(body).tool is None:
        return {}
    return {key: one for key, one in object_at(body, "params").items() if key not in ("name", "arguments")}


def arguments_in_short(body: Mapping[str, Any], most: int) -> str:
    """Return the arguments in one line; a cut line states how much is missing. Empty without arguments."""
    given, further = arguments_of(body), further_params(body)
    shown = _json(given) if given not in (None, {}) else ""
    if further:
        shown = f"{shown} further parameters: {_json(further)}".strip()
    return shortened(shown, most, ALL_SHOWN)


def proposed(proposal: Envelope, most: int) -> str:
    """Return a proposed call in one line: `write on files: {"path": "a"}`."""
    arguments = arguments_in_short(proposal.body, most)
    return f"{shortened(call_text(proposal), _SUBJECT_CHARS, ALL_SHOWN)}{f': {arguments}' if arguments else ''}"


class AlwaysAllow(NamedTuple):
    """The `capability/grant` that allows a proposer's call without approval, and its meaning in words."""

    grant: dict[str, Any]
    meaning: str


def always_allow(proposal: Envelope) -> AlwaysAllow | None:
    """Return the grant that always allows a proposed tool call; None if it would allow more.

    It would for calls to any participant or to the proposer itself, and for names that are patterns.
    """
    tool, to = CallSubject.read(proposal.body).tool, proposal.addressees
    sender = proposal.sender
    if tool is None or not to or sender in to or not all(map(is_literal, (tool, *to))):
        return None
    call = {"method": "tools/call", "params": {"name": tool}}
    pattern = {"kind": kinds.MCP_REQUEST, "to": list(to), "payload": call, **OWN_CALLS_ONLY}
    payload = {"recipient": sender, "capabilities": [pattern], "reason": f"{visible(tool)} is always allowed"}
    meaning = (
        f"{visible(sender)} may then call {call_text(proposal)} without asking, with any arguments, until it leaves "
        f"the space or somebody ends it. It may not approve such calls of others. `{ending(sender, pattern)}` ends it, "
        f"and so does Stop allowing in the details of {visible(sender)}."
    )
    return AlwaysAllow({"kind": kinds.CAPABILITY_GRANT, "to": [sender], "payload": payload}, meaning)


def allowed_calls(participant: str, patterns: object) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls that a participant may make without approval: words and pattern of each."""
    found: list[tuple[str, dict[str, Any]]] = []
    for pattern in patterns if isinstance(patterns, list | tuple) else ():
        if isinstance(pattern, Mapping) and not may_approve(pattern):
            tool, to = value_at(pattern, "payload", "params", "name"), pattern.get("to")
            where = ", ".join(map(str, to)) if isinstance(to, list | tuple) else str(to or "any participant")
            what = visible(f"{tool or 'any tool'}") + visible(f" on {where}")
            found.append((f"{visible(participant)} may call {what} without asking", dict(pattern)))
    return found


def ending(participant: str, pattern: Mapping[str, Any]) -> str:
    """Return the command that revokes a pattern of `always_allow`."""
    tool, to = value_at(pattern, "payload", "params", "name"), pattern.get("to")
    names = [str(one) for one in to] if isinstance(to, list | tuple) else [str(to)] if to else []
    options = [part for name in names for part in ("--to", name)] + (["--tool", str(tool)] if tool else [])
    return visible(shlex.join(["mew", "revoke", participant, kinds.MCP_REQUEST, *options]))


def _json(value: object) -> str:
    return visible(json.dumps(value, ensure_ascii=False))


def _line(text: str) -> str:
    return visible(text.replace("\t", "    "))
