"""[pure] A conversation at a terminal: reads typed lines, and shows received envelopes.

Keeps the context of slash commands: the numbers of open proposals, unacknowledged chats, and the recipients of plain
text. The participant knows the open proposals and the unfinished work. Sends and prints nothing.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mew_board import words
from mew_board.answers import said
from mew_board.conversation_lines import NOTED_KINDS
from mew_board.proposal_text import argument_lines
from mew_board.visible import visible
from mew_listener.bounded_dict import FairDict
from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.json_values import objects_at, value_at
from mew_protocol.payloads import read_or_none
from mew_protocol.payloads.chat import chat_refusal_in
from mew_protocol.payloads.mcp import CallSubject, approval_of, proposals_in
from mew_protocol.payloads.participant import Status, report_of
from mew_protocol.status_word import StatusWord

from mew_agent.errors import listed
from mew_agent.participant.unfinished import Unfinished
from mew_agent.parts.terminal.slash import (
    HELP,
    OTHER_NAMES,
    InvalidLine,
    TypedEnvelope,
    as_typed,
    call,
    control,
    mentioned,
    stream,
)

_REMEMBERED: Final = 200


@dataclass
class TerminalChat:
    """One person's conversation. `targets` receive plain text; empty means all participants.

    Its participant reads each envelope first, and provides `is_open` of proposals and the `unfinished` work.
    """

    me: str
    is_open: Callable[[Envelope], bool]
    unfinished: Unfinished
    targets: tuple[str, ...] = ()
    is_verbose: bool = False
    asks_receipts: bool = False
    """Whether agents are asked to tell the receipts of our chats."""
    proposals: dict[int, Envelope] = field(default_factory=dict)
    """Open proposals, by the number shown with each."""
    unanswered: FairDict[str, str] = field(default_factory=lambda: FairDict(_REMEMBERED, lambda _, sender: sender))
    """Chats to me that are not acknowledged: id to sender, oldest first."""
    _last_number: int = 0
    _closed_by_others: int | None = None
    """The number of a proposal that another participant closed since the person last decided."""
    _skipped: set[str] = field(default_factory=set)
    """Participants that skipped a compaction; the `compacted` status that follows is not shown."""

    # -- typed lines -------------------------------------------------------------------------------------

    def parse_line(self, line: str, names: Sequence[str] = ()) -> Sequence[TypedEnvelope | str]:
        """Parse a typed line: return envelopes to send, or a text to show. Raises `InvalidLine`.

        `names` are valid in `@name`.
        """
        text = line.strip()
        if not text:
            return []
        if not text.startswith("/"):
            return [self._chat(text, names)]
        command, _, rest = text.partition(" ")
        parts = rest.split()
        if command in OTHER_NAMES:
            name, does = OTHER_NAMES[command]
            return [f"* {command} is {name} here: {does}", *self.parse_line(f"{name} {rest}", names)]
        if command == "/ack":
            return self._acknowledge(parts)
        if command == "/cancel":
            return self._cancel(parts, names)
        run: dict[str, Callable[[], TypedEnvelope | str]] = {
            "/help": lambda: HELP,
            "/urgent": lambda: self._urgent(rest, names),
            "/verbose": self._switch_verbose,
            "/target": lambda: self._target(parts),
            "/approve": lambda: self._answer_proposal(parts, approve=True),
            "/reject": lambda: self._answer_proposal(parts, approve=False),
            "/call": lambda: call(rest),
            "/stream": lambda: stream(parts),
        }
        return [run[command]() if command in run else control(command, parts)]

    def _switch_verbose(self) -> str:
        self.is_verbose = not self.is_verbose
        return "showing all envelopes" if self.is_verbose else "showing important envelopes only"

    def _chat(self, text: str, names: Sequence[str]) -> TypedEnvelope:
        if text.startswith("{"):
            try:
                value = json.loads(text)
            except ValueError:
                value = None
            if isinstance(value, dict) and isinstance(value.get("kind"), str):
                return as_typed(value)
        first = text.split()[0].rstrip(".,:;!?")
        if names and first.startswith("@") and first[1:] not in names:
            raise InvalidLine(f"no participant '{first[1:]}' is here; expected one of {listed(names)}")
        more = {"receipts": True} if self.asks_receipts else {}
        return TypedEnvelope(kinds.CHAT, {"text": text, **more}, mentioned(text, names) or self.targets)

    def _urgent(self, text: str, names: Sequence[str]) -> TypedEnvelope:
        if not text.strip():
            raise InvalidLine("/urgent TEXT: a text is missing")
        typed = self._chat(text.strip(), names)
        return replace(typed, payload={**typed.payload, "urgent": True})

    def _target(self, parts: list[str]) -> str:
        if parts == ["none"]:
            self.targets = ()
        elif parts and parts != ["show"]:
            self.targets = tuple(part.removeprefix("@").rstrip(",") for part in parts)
        return f"text goes to {', '.join(self.targets) or 'all'}"

    def _acknowledge(self, parts: list[str]) -> list[TypedEnvelope]:
        if not self.unanswered:
            raise InvalidLine("no chat to acknowledge")
        selector = parts[0] if parts else None
        chosen = [next(reversed(self.unanswered))]
        if selector is not None:
            senders = self.unanswered.items()
            chosen = [id_ for id_, sender in senders if selector in ("all", sender) or id_.startswith(selector)]
        if not chosen:
            raise InvalidLine(f"no chat matches '{selector}'")
        payload = {"status": " ".join(parts[1:]) or "received"}
        return [TypedEnvelope(kinds.CHAT_ACKNOWLEDGE, payload, (self.unanswered.pop(id_),), (id_,)) for id_ in chosen]

    def _cancel(self, parts: list[str], names: Sequence[str]) -> list[TypedEnvelope]:
        """Cancel our open requests to agents, or all work of the named one."""
        target = parts[0].removeprefix("@") if parts and parts[0].removeprefix("@") in names else None
        reason = " ".join(parts if target is None else parts[1:])
        found = [*self.unfinished.cancellations(target)]
        if not found:
            works = ", ".join(dict.fromkeys(one.agent for one in self.unfinished.turns.values()))
            hint = f"; at work for others: {works}. /cancel PARTICIPANT stops it" if works and target is None else ""
            raise InvalidLine(f"nothing to cancel{hint}")
        payload = {"reason": reason} if reason else {}
        return [TypedEnvelope(one.kind, payload, (one.agent,), one.correlation_id, one.context) for one in found]

    def _answer_proposal(self, parts: list[str], *, approve: bool) -> TypedEnvelope:
        number = self._open_proposal(parts)
        proposal = self.proposals[number]  # it stays until it is closed: the gateway may refuse the decision
        if approve:
            return TypedEnvelope(kinds.MCP_REQUEST, approval_of(proposal), proposal.addressees, (proposal.id,))
        reason = " ".join(parts[1:] if parts and parts[0] == str(number) else parts) or "disagree"
        return TypedEnvelope(kinds.MCP_REJECT, {"reason": reason}, (proposal.sender,), (proposal.id,))

    def _open_proposal(self, parts: list[str]) -> int:
        """Return the number of the proposal. It may be omitted only for a single open proposal, because another may
        just have arrived.

        So it is also required in the first decision after another participant closed a proposal.
        """
        self._drop_closed()
        closed, self._closed_by_others = self._closed_by_others, None
        if parts and parts[0].isdecimal():
            if int(parts[0]) not in self.proposals:
                raise InvalidLine(f"no proposal {parts[0]} is open")
            return int(parts[0])
        if len(self.proposals) == 1 and closed is None:
            return next(iter(self.proposals))
        if len(self.proposals) == 1:
            raise InvalidLine(f"proposal {closed} is no longer open, {next(iter(self.proposals))} is. Add the number")
        listed = ", ".join(str(number) for number in self.proposals)
        raise InvalidLine(f"several proposals are open: {listed}. Add a number" if listed else "no proposal is open")

    # -- received envelopes ------------------------------------------------------------------------------

    def receive(self, envelope: Envelope) -> str | None:
        """Remember the targets of later commands. Returns the text to show, or None."""
        self._drop_closed()
        if envelope.kind == kinds.CHAT and envelope.names(self.me):
            self.unanswered[envelope.id] = envelope.sender
        line = self._shown(envelope)
        if line is None and self.is_verbose:
            to = f" to {', '.join(envelope.addressees)}" if envelope.addressees else ""
            line = f"  {envelope.sender}{to}: {envelope.kind} {json.dumps(envelope.payload, ensure_ascii=False)}"
        return line

    def _drop_closed(self) -> None:
        """Drop the proposals that are closed."""
        for number in [at for at, one in self.proposals.items() if not self.is_open(one)]:
            del self.proposals[number]
            self._closed_by_others = number

    def _shown(self, envelope: Envelope) -> str | None:
        who, body = envelope.sender, envelope.body
        mine = envelope.names(self.me)
        match envelope.kind:
            case kinds.CHAT | kinds.PARTICIPANT_STATUS if who == self.me:
                return None
            case kinds.CHAT:
                return _chat_line(envelope, self.me)
            case kinds.PARTICIPANT_STATUS:
                return self._status(envelope, mine=mine)
            case kinds.SYSTEM_PRESENCE:
                return _presence_line(envelope)
            case kind if kind in NOTED_KINDS:
                return _said_line(envelope)
            case kinds.SYSTEM_ERROR:
                return f"* refused: {body.get('message') or body.get('error')}"
            case kinds.MCP_PROPOSAL:
                return self._new_proposals((envelope,))
            case kinds.SYSTEM_WELCOME:
                return self._new_proposals(proposals_in(body))
            case kinds.SPACE_INVITE_ACK:
                return _invited(body)
            case _:
                return self._answer_shown(envelope) if mine else None

    def _new_proposals(self, proposed: Iterable[Envelope]) -> str | None:
        """Number the open proposals without a number. Returns the text to show."""
        known = {one.id for one in self.proposals.values()}
        new = [one for one in proposed if self.is_open(one) and one.id not in known]
        numbered = dict(enumerate(new, self._last_number + 1))
        self._last_number += len(new)
        self.proposals |= numbered
        return "\n".join(_proposed(one, number) for number, one in numbered.items()) or None

    def _answer_shown(self, envelope: Envelope) -> str | None:
        """Return the text for an answer to us."""
        who, body = envelope.sender, envelope.body
        match envelope.kind:
            case kinds.CHAT_ACKNOWLEDGE if (problem := chat_refusal_in(envelope)) is not None:
                return f"* {who} refused your message: {problem}"
            case kinds.MCP_REJECT:
                return _said_line(envelope)
            case kinds.MCP_RESPONSE:
                return f"* {who} answers: {_result(body)}"
            case kinds.PARTICIPANT_UNDO_DONE | kinds.PARTICIPANT_RECALL_DONE | kinds.PARTICIPANT_COMPACT_DONE:
                if body.get("skipped") is True:
                    self._skipped.add(who)
                told = said(envelope)
                return f"* {who}: {told.text if told is not None else 'answered'}"
            case _:
                return None

    def _status(self, envelope: Envelope, *, mine: bool) -> str | None:
        word = str(envelope.body.get("status") or "")
        is_quiet = not word or StatusWord.read(word).has("calm", "working")
        was_skipped = envelope.sender in self._skipped
        self._skipped.discard(envelope.sender)
        if (not mine and is_quiet) or (was_skipped and word == "compacted"):
            return None
        status = read_or_none(Status, envelope.body)
        work = report_of(status).progress
        more = f", {words.progress(work)}" if work is not None else figures_of(status)
        return f"* {envelope.sender}: {words.state(word) or 'no status'}{more}"


def figures_of(status: Status | None) -> str:
    """Return a participant's figures after a comma; empty if its status has none."""
    if status is None or not words.has_context(status):
        return ""
    if status.tokens is not None and status.max_tokens is None:
        return f", {words.tokens(status)} tokens ({words.source(status)})"  # a status with only the requested fields
    return f", {words.tokens(status)} of {words.window(status)} ({words.source(status)})"


def _proposed(proposal: Envelope, number: int) -> str:
    first, *more = argument_lines(proposal.body)
    method, tool = CallSubject.read(proposal.body)
    what, to = visible(tool or method), visible(", ".join(proposal.addressees) or "everyone")
    lines = [f"* {visible(proposal.sender)} proposes to {to}: {what} {first}", *more]
    return "\n  ".join([*lines, f"/approve {number} or /reject {number}"])


def _invited(body: Mapping[str, Any]) -> str:
    name = visible(str(body.get("participant_id")))
    if body.get("token") is None:
        return f"* invitation of {name}: {body.get('error') or body.get('status')}"
    page = f"`mew dashboard --participant {name}` prints the address that signs in"
    return f"* {name} was added. Its token, shown only once: {body['token']}\n  {page}"


def _result(body: Mapping[str, Any]) -> str:
    if body.get("error") is not None:
        return f"error: {value_at(body, 'error', 'message') or body['error']}"
    texts = [str(part["text"]) for part in objects_at(body, "result", "content") if part.get("text")]
    return "\n".join(texts) or json.dumps(body.get("result"), ensure_ascii=False)


def _chat_line(envelope: Envelope, me: str) -> str:
    others = [one for one in envelope.addressees if one != me]
    to = f" (to {', '.join(others)})" if others else ""
    return f"{envelope.sender}{to}: {envelope.body.get('text')}"


def _presence_line(envelope: Envelope) -> str | None:
    told = said(envelope)
    return f"* {told.about[0]} {told.text}" if told is not None else None


def _said_line(envelope: Envelope) -> str | None:
    told = said(envelope)
    return f"* {told.text}" if told is not None else None
