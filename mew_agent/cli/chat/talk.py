"""[pure] A conversation at a terminal: what a typed line means, and how what is heard reads.

Owns the slash commands and what they refer to: open proposals, chats not yet acknowledged, running reasonings, whom
plain text goes to. Sends and prints nothing itself.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.participant import CompactDone, Status
from pydantic import ValidationError

from mew_agent.cli.board import words as words
from mew_agent.cli.chat.slash import HELP, Mistake, Send, as_written, call, control, stream

K = TypeVar("K")

_REMEMBERED: Final = 200
_QUIET_STATUSES: Final = frozenset({"active", "ready", "thinking", ""})


@dataclass(frozen=True, slots=True)
class Show:
    """Lines to print."""

    text: str


@dataclass(frozen=True, slots=True)
class Leave:
    """The end of the conversation."""


Action = Send | Show | Leave


@dataclass
class Talk:
    """One person's conversation. `targets` is whom plain text goes to; empty means everybody."""

    me: str
    targets: tuple[str, ...] = ()
    is_verbose: bool = False
    proposals: dict[int, Envelope] = field(default_factory=dict)
    """Open proposals by the number they are shown with."""
    unanswered: dict[str, str] = field(default_factory=dict)
    """Chats to me that were not acknowledged: id to sender, oldest first."""
    reasonings: dict[str, str] = field(default_factory=dict)
    """Running reasonings: id to who reasons."""
    last_chat: Envelope | None = None
    _proposals_seen: int = 0
    _skipped: set[str] = field(default_factory=set)
    """Who said that a compaction was skipped; the status that ends one says `compacted` all the same."""

    # -- typing ------------------------------------------------------------------------------------------

    def typed(self, line: str) -> list[Action]:
        """What a line asks for. Raises `Mistake`."""
        text = line.strip()
        if not text:
            return []
        if not text.startswith("/"):
            return [self._said(text)]
        command, _, rest = text.partition(" ")
        parts = rest.split()
        match command:
            case "/exit" | "/quit":
                return [Leave()]
            case "/help":
                return [Show(HELP)]
            case "/verbose":
                self.is_verbose = not self.is_verbose
                return [Show("everything is shown" if self.is_verbose else "only what matters is shown")]
            case "/target":
                return [self._target(parts)]
            case "/ack":
                return self._acknowledge(parts)
            case "/cancel":
                return [self._cancel(rest.strip())]
            case "/approve" | "/reject":
                return [self._answer_proposal(parts, approve=command == "/approve")]
            case "/call":
                return [call(rest)]
            case "/stream":
                return [stream(parts)]
            case _:
                return [control(command, parts)]

    def _said(self, text: str) -> Send:
        if text.startswith("{"):
            try:
                value = json.loads(text)
            except ValueError:
                value = None
            if isinstance(value, dict) and isinstance(value.get("kind"), str):
                return as_written(value)
        return Send(kinds.CHAT, {"text": text}, self.targets)

    def _target(self, parts: list[str]) -> Show:
        if parts == ["none"]:
            self.targets = ()
        elif parts and parts != ["show"]:
            self.targets = tuple(part.removeprefix("@").rstrip(",") for part in parts)
        return Show(f"text goes to {', '.join(self.targets) or 'everybody'}")

    def _acknowledge(self, parts: list[str]) -> list[Action]:
        if not self.unanswered:
            raise Mistake("no chat waits for an acknowledgement")
        selector = parts[0] if parts else None
        chosen = [
            id_
            for id_, sender in self.unanswered.items()
            if selector in ("all", sender) or (selector is not None and id_.startswith(selector))
        ]
        if selector is None:
            chosen = [next(reversed(self.unanswered))]
        if not chosen:
            raise Mistake(f"no chat matches '{selector}'")
        status = " ".join(parts[1:]) or "received"
        return [Send(kinds.CHAT_ACKNOWLEDGE, {"status": status}, (self.unanswered.pop(id_),), (id_,)) for id_ in chosen]

    def _cancel(self, reason: str) -> Send:
        payload = {"reason": reason} if reason else {}
        if self.reasonings:
            return Send(kinds.REASONING_CANCEL, payload, context=next(reversed(self.reasonings)))
        if self.last_chat is None:
            raise Mistake("nobody reasons, and you have said nothing")
        return Send(kinds.CHAT_CANCEL, payload, self.last_chat.addressees, (self.last_chat.id,))

    def _answer_proposal(self, parts: list[str], *, approve: bool) -> Send:
        number = self._open_proposal(parts)
        proposal = self.proposals.pop(number)
        if approve:
            return Send(kinds.MCP_REQUEST, dict(proposal.body), proposal.addressees, (proposal.id,))
        reason = " ".join(parts[1:] if parts and parts[0] == str(number) else parts) or "disagree"
        return Send(kinds.MCP_REJECT, {"reason": reason}, (proposal.sender,), (proposal.id,))

    def _open_proposal(self, parts: list[str]) -> int:
        """The number that is meant. Without one there must be no doubt: another may have come in just now."""
        if parts and parts[0].isdecimal():
            if int(parts[0]) not in self.proposals:
                raise Mistake(f"no proposal {parts[0]} is open")
            return int(parts[0])
        if len(self.proposals) == 1:
            return next(iter(self.proposals))
        listed = ", ".join(str(number) for number in self.proposals)
        raise Mistake(f"which one? open: {listed}" if listed else "no proposal is open")

    # -- hearing -----------------------------------------------------------------------------------------

    def hear(self, envelope: Envelope) -> str | None:
        """Remember what later commands may refer to. Returns how it reads; None for what need not be shown."""
        self._remember(envelope)
        line = self._worth_showing(envelope)
        if line is None and self.is_verbose:
            to = f" to {', '.join(envelope.addressees)}" if envelope.addressees else ""
            line = f"  {envelope.sender}{to}: {envelope.kind} {json.dumps(envelope.payload, ensure_ascii=False)}"
        return line

    def _remember(self, envelope: Envelope) -> None:
        match envelope.kind:
            case kinds.CHAT if envelope.sender == self.me:
                self.last_chat = envelope
            case kinds.CHAT if envelope.names(self.me):
                self.unanswered[envelope.id] = envelope.sender
            case kinds.MCP_PROPOSAL if envelope.sender != self.me:
                self._proposals_seen += 1
                self.proposals[self._proposals_seen] = envelope
            case kinds.MCP_REQUEST | kinds.MCP_REJECT:
                self.proposals = {at: one for at, one in self.proposals.items() if not envelope.refers_to(one.id)}
            case kinds.MCP_WITHDRAW:
                self.proposals = {
                    at: one
                    for at, one in self.proposals.items()
                    if not (envelope.refers_to(one.id) and one.sender == envelope.sender)
                }
            case _:
                self._follow_reasoning(envelope)
        _drop_oldest(self.proposals)
        _drop_oldest(self.unanswered)
        _drop_oldest(self.reasonings)

    def _follow_reasoning(self, envelope: Envelope) -> None:
        if envelope.kind == kinds.REASONING_START and envelope.sender != self.me:
            self.reasonings[envelope.id] = envelope.sender
        elif envelope.kind == kinds.REASONING_CONCLUSION and isinstance(envelope.context, str):
            self.reasonings.pop(envelope.context, None)

    def _worth_showing(self, envelope: Envelope) -> str | None:
        who, body = envelope.sender, envelope.body
        mine = envelope.names(self.me)
        match envelope.kind:
            case kinds.CHAT if who != self.me:
                others = [one for one in envelope.addressees if one != self.me]
                to = f" (to {', '.join(others)})" if others else ""
                return f"{who}{to}: {body.get('text')}"
            case kinds.SYSTEM_PRESENCE:
                member = body.get("participant")
                name = member.get("id") if isinstance(member, Mapping) else "?"
                verb = {"join": "is here", "leave": "has left"}.get(str(body.get("event")), str(body.get("event")))
                return f"* {name} {verb}"
            case kinds.SYSTEM_ERROR:
                return f"* refused: {body.get('message') or body.get('error')}"
            case kinds.MCP_PROPOSAL if who != self.me:
                return _proposed(envelope, self._proposals_seen)
            case kinds.MCP_REJECT if mine:
                return f"* {who} rejects it: {body.get('reason')}"
            case kinds.MCP_RESPONSE if mine:
                return f"* {who} answers: {_result(body)}"
            case kinds.PARTICIPANT_COMPACT_DONE if mine:
                if body.get("skipped") is True:
                    self._skipped.add(who)
                return f"* {who}: {_freed(body)}"
            case kinds.PARTICIPANT_STATUS if who != self.me:
                return self._status(envelope, mine=mine)
            case kinds.SPACE_INVITE_ACK:
                return f"* invitation of {body.get('participant_id')}: {body.get('status')}"
            case _:
                return None

    def _status(self, envelope: Envelope, *, mine: bool) -> str | None:
        word = str(envelope.body.get("status") or "")
        was_skipped = envelope.sender in self._skipped
        self._skipped.discard(envelope.sender)
        if (not mine and word in _QUIET_STATUSES) or (was_skipped and word == "compacted"):
            return None
        return f"* {envelope.sender}: {words.state(word) or 'no word'}{figures_of(envelope.body)}"


def figures_of(body: Mapping[str, Any]) -> str:
    """How full somebody is by a status, behind a comma; empty when the status cannot be read or says nothing."""
    try:
        status = Status.model_validate(body)
    except ValidationError:
        return ""
    if not words.has_context(status):
        return ""
    if status.tokens is not None and status.max_tokens is None:
        return f", {words.tokens(status)} tokens ({words.basis(status)})"  # narrowed to what was asked for
    return f", {words.tokens(status)} of {words.window(status)} ({words.basis(status)})"


def _proposed(proposal: Envelope, number: int) -> str:
    body = proposal.body
    params = body.get("params")
    shown = json.dumps(params, ensure_ascii=False) if params is not None else ""
    to = f" to {', '.join(proposal.addressees)}" if proposal.addressees else ""
    return f"* {proposal.sender} proposes{to}: {body.get('method')} {shown}\n  /approve {number} or /reject {number}"


def _drop_oldest(kept: dict[K, Any]) -> None:
    while len(kept) > _REMEMBERED:
        del kept[next(iter(kept))]


def _result(body: Mapping[str, Any]) -> str:
    if body.get("error") is not None:
        error = body["error"]
        return f"error: {error.get('message') if isinstance(error, Mapping) else error}"
    result = body.get("result")
    if isinstance(result, Mapping) and isinstance(result.get("content"), list):
        parts = [part.get("text") for part in result["content"] if isinstance(part, Mapping)]
        if any(parts):
            return "\n".join(str(part) for part in parts if part)
    return json.dumps(result, ensure_ascii=False)


def _freed(body: Mapping[str, Any]) -> str:
    try:
        done = CompactDone.model_validate(body)
    except ValidationError:
        return "compacted"
    if done.skipped:
        return f"skipped, {words.skipped(done.reason or 'without a reason')}"
    return "freed an unknown number of tokens" if done.freed_tokens is None else f"freed {done.freed_tokens:,} tokens"
