"""[pure] List items that need a person: the participant, the reason, the time, and possible actions.

Owns their kinds, order, words and actions, so that the dashboard, the terminal, `mew status` and webhooks show the same
list. An item changes only with its cause: readers compute ages. Does not know the readers or their capabilities.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from mew_protocol import kinds
from mew_protocol.context_report import AgentMode, ContextReport, Waiting
from mew_protocol.envelope import unix_seconds, wire_timestamp
from mew_protocol.json_values import object_at
from mew_protocol.payloads.attention_items import LEVELS, AttentionAction, AttentionItem, AttentionKind, AttentionLevel
from mew_protocol.payloads.mcp import UndecidedProposal, approval_of
from mew_protocol.payloads.participant import BoardEntry, report_of
from mew_protocol.status_word import NEEDS, StatusWord

from mew_board import words
from mew_board.figures import compaction_sizes
from mew_board.proposal_text import AlwaysAllow, always_allow, is_compaction, proposed, rejections
from mew_board.quoting import mew_command
from mew_board.shared_words import SEVERAL_WORDS
from mew_board.visible import short

MOST_OF_A_KIND: Final = 3
"""More items of one kind become one item."""

UNREAD_SECONDS: Final = 300
"""Messages that no prompt has held for so long need a look."""

STALLED_SECONDS: Final = 600
"""A compaction that reports nothing for so long counts as stalled."""

_ABOUT_PEERS: Final[Mapping[str, tuple[AttentionKind, str]]] = {
    "loop": ("loop", "no longer answers"),
    "tools": ("tools_left_out", "leaves out tools of"),
    "budget": ("budget_spent", "has spent its tokens for"),
}
"""The action that an agent stops or limits for another participant, by the kind of its wait."""

_ARGUMENT_CHARS: Final = 160
_DETAIL_CHARS: Final = 300
_NAMES: Final = 5


def attention(
    entries: Iterable[BoardEntry],
    proposals: Iterable[UndecidedProposal],
    *,
    now: datetime,
    expected: Collection[str] = (),
    faults: Mapping[str, str] | None = None,
) -> tuple[AttentionItem, ...]:
    """Return everything that needs a person, sorted, one item for each cause.

    `expected` are participants that should be connected; `faults` are problems with participants' programs.
    """
    faults = faults or {}
    found = [approval_item(one, now=now) for one in proposals]
    for entry in entries:
        found += entry_items(entry, now=now, is_expected=entry.id in expected, fault=faults.get(entry.id))
    return sort_items(found)


def sort_items(items: Iterable[AttentionItem]) -> tuple[AttentionItem, ...]:
    """Sort items: by level, then the oldest first."""
    return tuple(sorted(items, key=lambda one: (LEVELS.index(one.level), one.since is None, one.since or "", one.id)))


def aggregate(items: Iterable[AttentionItem], *, most: int = MOST_OF_A_KIND) -> tuple[AttentionItem, ...]:
    """Replace more than `most` items of one kind and level with a group. Expects and keeps their order."""
    groups: dict[tuple[str, str], list[AttentionItem]] = {}
    for one in items:
        groups.setdefault((one.level, one.kind), []).append(one)
    found = [shown for group in groups.values() for shown in ([_together(group)] if len(group) > most else group)]
    return sort_items(found)


def approval_item(proposal: UndecidedProposal, *, now: datetime) -> AttentionItem:
    """Return the item of an undecided proposal.

    Uses the gateway's age; a new proposal has none, so its `ts` counts.
    """
    age = proposal.age_seconds
    sender, name = proposal.sender, proposal.short_id or proposal.id
    if is_compaction(proposal):
        sizes = compaction_sizes(object_at(proposal.body, "params", "arguments"))
        what = f"{sender} asks before it compacts its context{sizes}"
    else:
        what = f"{sender} waits for approval of {proposed(proposal, _ARGUMENT_CHARS)}"
    approve = AttentionAction(
        label="Approve",
        command=mew_command("approve", name),
        capability=kinds.MCP_REQUEST,
        envelope=_draft(kinds.MCP_REQUEST, proposal.addressees, approval_of(proposal), (proposal.id,)),
    )
    reject = AttentionAction(
        label="Reject",
        command=mew_command("reject", name),
        capability=kinds.MCP_REJECT,
        envelope=_draft(kinds.MCP_REJECT, (sender,), {"reason": "disagree"}, (proposal.id,)),
    )
    allowed = always_allow(proposal)
    always = () if allowed is None else (_always(allowed),)
    return AttentionItem(
        id=f"approval:{sender}:{proposal.id}",
        kind="approval",
        level="blocking",
        participant=sender,
        reason=f"{what}{rejections(proposal)}",
        since=proposal.ts if age is None else wire_timestamp(now - timedelta(seconds=age)),
        actions=(reject,) if proposal.truncated else (approve, reject, *always),
        rejected_by=tuple(proposal.rejected_by or ()),
    )


def _always(allowed: AlwaysAllow) -> AttentionAction:
    kind = kinds.CAPABILITY_GRANT
    return AttentionAction(
        label="Always allow this tool", confirm=allowed.meaning, capability=kind, envelope=allowed.grant
    )


def entry_items(
    entry: BoardEntry, *, now: datetime, is_expected: bool = False, fault: str | None = None
) -> tuple[AttentionItem, ...]:
    """Return the items for one participant's status; see `approval_item` for proposals.

    `is_expected` and `fault` as in `attention`, for this participant.
    """
    status = entry.status
    said = StatusWord() if status is None else status.word
    if fault is not None:
        return (_program_item(entry, f"{entry.id}: {short(fault, _DETAIL_CHARS)}"),)
    if not entry.connected:
        return (*_absence_items(entry, said, is_expected=is_expected), *_unread_items(entry, now))
    if status is None:
        return ()
    if said.word == "failed":
        detail = short(said.reason, _DETAIL_CHARS)
        return (_program_item(entry, f"{entry.id}: {detail or 'its program has ended'}"),)
    return tuple(_status_items(entry, said, status.context, now))


def _absence_items(entry: BoardEntry, said: StatusWord, *, is_expected: bool) -> tuple[AttentionItem, ...]:
    if said.word == "shutting_down":
        return ()
    if is_expected:
        return (_disconnected(entry, "warning"),)
    has_report = entry.status is not None and entry.status.context is not None
    return (_disconnected(entry, "notice"),) if has_report else ()


def _status_items(
    entry: BoardEntry, said: StatusWord, report: ContextReport | None, now: datetime
) -> Iterator[AttentionItem]:
    """Yield the items of a connected participant, from the word of its status and its context report."""
    found = [*_word_items(entry, said, report, now)]
    if report is not None:
        found += _waiting_items(entry, report)
        if not found and entry.outdated is None and said.word not in ("compacting", "compaction_waiting"):
            found += _fill_items(entry)
        if all(one.level != "blocking" for one in found):
            found += _unread_items(entry, now)
        if report.mode is not None:
            found += _mode_items(entry, report.mode)
    yield from found


def _word_items(
    entry: BoardEntry, said: StatusWord, report: ContextReport | None, now: datetime
) -> Iterator[AttentionItem]:
    """Yield the item for a status word in `words.json`, and for a compaction that takes too long."""
    at = entry.received_at
    if said.word == "compacting" and now.timestamp() - (unix_seconds(at) or math.inf) >= STALLED_SECONDS:
        reason = f"{entry.id} has been compacting for more than {STALLED_SECONDS // 60} minutes"
        yield _item(entry, "compaction_stalled", "warning", reason, at, _logs(entry.id), _restart(entry.id))
    need = NEEDS.get(said.word)
    if need is None:
        return
    more, since = "", at
    if need.get("says_detail"):
        more = f": {short(said.reason, _DETAIL_CHARS)}" if said.reason else ""
    elif (wait := _model_wait(report)) is not None:
        more, since = f" at {short(wait.what, _DETAIL_CHARS)}", wait.since
    actions = (_ACTIONS[name](entry.id) for name in need["actions"])
    yield _item(entry, need["kind"], need["level"], f"{entry.id} {need['says']}{more}", since, *actions)


def _model_wait(report: ContextReport | None) -> Waiting | None:
    waits = (report.waiting if report is not None else None) or ()
    return next((one for one in waits if one.kind == "model"), None)


def _peer_item(entry: BoardEntry, wait: Waiting) -> AttentionItem:
    """Return the item of an agent that does not answer a peer."""
    kind, says = _ABOUT_PEERS[wait.kind]
    peer, actions = wait.peer, list[AttentionAction]()
    if kind == "loop":
        peer = peer or "an agent"
        actions.append(_control("Resume", "resume", kinds.PARTICIPANT_RESUME, entry.id))
    reason = f"{entry.id} {says} {peer}: {short(wait.what, _DETAIL_CHARS)}"
    item = _item(entry, kind, "warning", reason, wait.since, *actions)
    return item.model_copy(update={"id": f"{kind}:{entry.id}:{wait.peer or ''}"})


def _waiting_items(entry: BoardEntry, report: ContextReport) -> Iterator[AttentionItem]:
    waits = report.waiting or ()
    yield from (_peer_item(entry, one) for one in waits if one.kind in _ABOUT_PEERS)
    held = [one for one in waits if one.kind == "room"]
    if held:
        messages = "1 message that does" if len(held) == 1 else f"{len(held)} messages that do"
        reason = f"{entry.id} holds {messages} not fit into its context"
        yield _item(entry, "held", "warning", reason, min(one.since for one in held), *_make_room(entry.id))


def _unread_items(entry: BoardEntry, now: datetime) -> Iterator[AttentionItem]:
    """Yield the item for an agent with unread messages, connected or away."""
    unread = entry.unread if entry.status is not None and entry.status.context is not None else None
    since = unix_seconds(unread.oldest_at) if unread is not None and unread.messages else None
    if unread is None or since is None or now.timestamp() - since < UNREAD_SECONDS:
        return
    count = str(unread.messages) if unread.is_complete else f"at least {unread.messages}"
    messages = ("a message" if count == "1" else f"{count} message") if unread.messages == 1 else f"{count} messages"
    why, actions = _why_unread(entry)
    reason = f"{entry.id} has not read {messages}{why}"
    yield _item(entry, "unread", "warning", reason, unread.oldest_at, *actions, _logs(entry.id))


def _why_unread(entry: BoardEntry) -> tuple[str, tuple[AttentionAction, ...]]:
    """Return why an agent reads nothing, according to its status, and the action that helps."""
    if not entry.connected:
        return ", it is not connected", (_restart(entry.id),)
    if entry.status is not None and entry.status.word.word == "paused":
        return ", it is paused", (_control("Resume", "resume", kinds.PARTICIPANT_RESUME, entry.id),)
    return "", ()


def _fill_items(entry: BoardEntry) -> Iterator[AttentionItem]:
    status = entry.status
    if status is not None and words.is_nearly_full(status):
        reason = f"{entry.id} is nearly full and does not compact automatically"
        yield _item(entry, "nearly_full", "warning", reason, entry.received_at, *_make_room(entry.id))
    elif status is not None and words.compacts_next(status):
        limit = report_of(status).compact_at_tokens
        where = "" if limit is None else f", at {limit:,} tokens"
        reason = f"{entry.id} compacts automatically in its next turn{where}"
        yield _item(entry, "about_to_compact", "notice", reason, None, _compact(entry.id))


def _mode_items(entry: BoardEntry, mode: AgentMode) -> Iterator[AttentionItem]:
    if mode.asks or mode.chosen:
        return
    level: AttentionLevel = "notice" if mode.asks is None else "warning"
    does = "may act without asking" if mode.asks is None else "acts without asking"
    reason = f"{entry.id} {does}, in its mode '{short(mode.id, _ARGUMENT_CHARS)}': set `acp.mode` in space.yaml"
    yield _item(entry, "acts_unasked", level, reason, None, _logs(entry.id))


def _program_item(entry: BoardEntry, reason: str) -> AttentionItem:
    return _item(entry, "program_ended", "blocking", reason, entry.received_at, _logs(entry.id), _restart(entry.id))


def _disconnected(entry: BoardEntry, level: AttentionLevel) -> AttentionItem:
    how = "is no longer connected" if entry.status is not None else "has not joined"
    actions = (_logs(entry.id), _restart(entry.id))
    return _item(entry, "disconnected", level, f"{entry.id} {how}", entry.received_at, *actions)


def not_stored_item() -> AttentionItem:
    """Return the item of a gateway that cannot store."""
    reason = (
        "the gateway cannot store envelopes, so it accepts none: its disk may be full, or its backplane unreachable"
    )
    action = AttentionAction(label="Show log", command="mew logs gateway")
    return AttentionItem(id="not_stored", kind="not_stored", level="blocking", reason=reason, actions=(action,))


def _item(
    entry: BoardEntry,
    kind: AttentionKind,
    level: AttentionLevel,
    reason: str,
    since: str | None,
    *actions: AttentionAction,
) -> AttentionItem:
    return AttentionItem(
        id=f"{kind}:{entry.id}",
        kind=kind,
        level=level,
        participant=entry.id,
        reason=reason,
        since=since,
        actions=actions,
    )


def _together(group: list[AttentionItem]) -> AttentionItem:
    first = group[0]
    names = list(dict.fromkeys(one.participant for one in group if one.participant is not None))
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    actions = (AttentionAction(label="List", command="mew proposals"),) if first.kind == "approval" else ()
    return AttentionItem(
        id=f"{first.kind}:{first.level}:*",
        kind=first.kind,
        level=first.level,
        reason=f"{len(group)} {SEVERAL_WORDS[first.kind]}: {', '.join(names[:_NAMES])}{more}",
        since=min((one.since for one in group if one.since is not None), default=None),
        actions=actions,
        items=tuple(group),
    )


def _compact(participant: str) -> AttentionAction:
    return _control("Compact", "compact", kinds.PARTICIPANT_COMPACT, participant)


def _clear(participant: str) -> AttentionAction:
    return _control("Clear", "clear", kinds.PARTICIPANT_CLEAR, participant)


def _make_room(participant: str) -> tuple[AttentionAction, ...]:
    return _compact(participant), _clear(participant)


def _control(label: str, command: str, kind: str, participant: str) -> AttentionAction:
    return AttentionAction(
        label=label,
        command=mew_command(command, participant),
        capability=kind,
        envelope=_draft(kind, (participant,), {}),
    )


def _logs(participant: str) -> AttentionAction:
    return AttentionAction(label="Show log", command=mew_command("logs", participant))


def _restart(participant: str) -> AttentionAction:
    return AttentionAction(label="Restart", command=mew_command("restart", participant))


_ACTIONS: Final[Mapping[str, Callable[[str], AttentionAction]]] = {
    "log": _logs,
    "restart": _restart,
    "compact": _compact,
    "clear": _clear,
}
"""The actions that `words.json` names."""


def _draft(kind: str, to: Iterable[str], payload: dict[str, Any], about: tuple[str, ...] = ()) -> dict[str, Any]:
    headers: dict[str, Any] = {"kind": kind}
    if names := list(to):
        headers["to"] = names
    if about:
        headers["correlation_id"] = list(about)
    return {**headers, "payload": payload}
