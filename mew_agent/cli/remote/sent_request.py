"""Sends one envelope to a participant and follows the events that answer it.

Owns sending and waiting: the event stream opens before the envelope is sent, so no answer is missed. Commands choose
the envelope and the kinds of its answers.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from uuid import uuid4

from mew_board import words
from mew_board.quoting import clean
from mew_protocol import kinds
from mew_protocol.envelope import Draft, Envelope, wire_timestamp
from mew_protocol.expectations import expectation
from mew_protocol.payloads.base import read_or_none
from mew_protocol.payloads.chat import chat_refusal_in, may_answer
from mew_protocol.payloads.participant import (
    CONTROL_ANSWERS,
    Board,
    BoardEntry,
    Status,
    is_preliminary,
    refusal_in,
    report_of,
)
from mew_settings.setting_problems import did_you_mean, first_problem
from pydantic import BaseModel, ValidationError

from mew_agent.cli.app import terminal
from mew_agent.cli.app.options import ConnectionOptions, TargetArgument, TimeoutOption
from mew_agent.cli.board.board_events import apply_event, entry_of
from mew_agent.cli.remote.http_api import GatewayApi, SpaceEvents
from mew_agent.cli.remote.identity import configuration_at, find_gateway
from mew_agent.errors import BadAnswer, ChatRefused, ConfigError, MewAgentError, NotConnected, PeerTimeout, listed

STATUS_SECONDS: Final = 30.0
"""Timeout for answers that a participant gives at once."""

ANSWER_SECONDS: Final = 120.0
"""How long to wait for an answer that takes a model call."""

P = TypeVar("P", bound=BaseModel)


class NoSuchParticipant(ConfigError):
    """The space has no such participant. Suggests a similar one, or lists the members."""

    def __init__(self, participant: str, space: str, members: Sequence[str]) -> None:
        hint = did_you_mean(participant, members) or f" (members: {listed(sorted(members))})"
        super().__init__(participant, f"no participant '{participant}' in space '{space}'{hint}")

    def __str__(self) -> str:
        return self.problem


class RequestRefused(MewAgentError):
    """A participant refused the request of a command."""

    def __init__(self, participant: str, problem: str) -> None:
        super().__init__(f"{participant}: {clean(problem)}")


class ParticipantOffline(NotConnected):
    """No answer can arrive, because the participant named in `cause` is not connected."""

    def __str__(self) -> str:
        return self.cause


@dataclass
class SentRequest:
    """An envelope that was sent, and the events that follow it."""

    sent: Envelope
    participant: str
    board: Board
    events: SpaceEvents
    api: GatewayApi
    timeout_seconds: float
    deadline: float
    """When to give up, as a time of `time.monotonic()`."""
    progress: terminal.ProgressLine = field(default_factory=terminal.ProgressLine)
    on_status: list[Callable[[], None]] = field(default_factory=list)
    """Called when the participant's entry on the board changes."""
    does_correlate: bool = field(default=False, init=False)
    """Whether the participant began by referring to the request. Its answer will, and its other chats are none."""

    _calls_before: int | None = field(init=False)
    """The model calls before this request."""
    status_id_before: str | None = field(init=False)
    """The id of the last status before this request."""

    def __post_init__(self) -> None:
        self._calls_before = _calls(self.last_status)
        self.status_id_before = self.last_status_id
        self.show_progress()

    def show_progress(self) -> None:
        """Show the participant's state, the number of its call for us, and the size of its context."""
        status = self.last_status
        state = words.state(status.status or "") if status is not None and not words.is_quiet(status) else ""
        number = _number_of_call(self._calls_before, _calls(status))
        work = report_of(status).progress
        has_size = status is not None and status.tokens is not None
        size = f"{words.tokens(status)} of {words.window(status)} tokens" if has_size else ""
        parts = (state or "waiting for the answer", number, words.progress(work) if work is not None else "", size)
        self.progress.show(f"{self.participant}: {', '.join(one for one in parts if one)}")

    def next_answer(self, *kinds: str) -> tuple[str, Mapping[str, Any]]:
        """Return kind and payload of the next answer of these kinds from the participant. Skips preliminary answers.

        Raises `PeerTimeout`, `NotConnected` or, for a chat, `ChatRefused`.
        """
        while True:
            try:
                event = self.events.next(deadline=self.deadline)
            except TimeoutError:
                detail = self._why_silent()
                raise PeerTimeout(self.participant, self.sent.kind, self.timeout_seconds, detail) from None
            board, changed = apply_event(self.board, event.name, event.body)
            self.board = board or self.board
            if changed == self.participant:
                self.show_progress()
                for follow in self.on_status:
                    follow()
            answer = read_or_none(Draft, event.body) if event.name == "envelope" else None
            if answer is not None and self._is_answered_by(answer):
                if answer.kind in kinds and not is_preliminary(answer, self.sent.kind):
                    return answer.kind, answer.body
            elif changed == self.participant and not check_known(self.api, self.board, changed).connected:
                raise ParticipantOffline(self.api.gateway, f"'{self.participant}' left before it answered")

    def next_status(self) -> Status:
        """Return the next status that answers the request."""
        return parse_answer(Status, self.next_answer(kinds.PARTICIPANT_STATUS)[1], self.participant)

    @property
    def last_status(self) -> Status | None:
        """The participant's last status."""
        entry = entry_of(self.board, self.participant)
        return entry.status if entry is not None else None

    @property
    def last_status_id(self) -> str | None:
        """The id of the participant's last status."""
        entry = entry_of(self.board, self.participant)
        return entry.status_id if entry is not None else None

    @property
    def is_paused(self) -> bool:
        """True if the participant's last status is `paused`; it answers after `resume`."""
        return self.last_status is not None and self.last_status.status == "paused"

    @property
    def resume_hint(self) -> str:
        """The command that resumes the participant."""
        return f"`mew resume {self.participant}` resumes it"

    def _why_silent(self) -> str:
        if self.is_paused:
            return f"it is paused; {self.resume_hint}"
        waits = [words.approval(wait) for wait in words.approvals(self.last_status)]
        return f"it waits for {' and '.join(waits)}; see `mew proposals`" if waits else ""

    def _is_answered_by(self, answer: Draft) -> bool:
        if answer.sender != self.participant:
            return False
        if answer.refers_to(self.sent.id) and (problem := chat_refusal_in(answer)) is not None:
            raise ChatRefused(self.participant, clean(problem))
        if answer.kind == kinds.REASONING_START and answer.refers_to(self.sent.id):
            self.does_correlate = True
        return may_answer(answer, self.sent, does_correlate=self.does_correlate)


@contextmanager
def send_request(
    connection: ConnectionOptions,
    participant: str,
    kind: str,
    payload: BaseModel,
    timeout_seconds: float,
    on_interrupt: Callable[[SentRequest], None] | None = None,
) -> Iterator[SentRequest]:
    """Send an envelope to one participant. Raises `NoSuchParticipant` or `ParticipantOffline` before sending it.

    Once the participant may have the envelope, Ctrl-C calls `on_interrupt`.
    """
    api = find_gateway(connection)
    with api.events() as events, terminal.ProgressLine() as progress:
        board = first_board(events)
        check_member(api, board, participant)
        sent = new_envelope(api, kind, payload, participant)
        deadline = time.monotonic() + timeout_seconds
        request = SentRequest(sent, participant, board, events, api, timeout_seconds, deadline, progress)
        try:
            api.send(sent.as_dict())
            yield request
        except KeyboardInterrupt:
            if on_interrupt is not None:
                on_interrupt(request)
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetedRequest:
    """A request to one participant, as given on the command line."""

    target: TargetArgument
    connection: ConnectionOptions

    @property
    def timeout_seconds(self) -> float:
        """How long to wait for the answer."""
        return STATUS_SECONDS

    def send(
        self, kind: str, payload: BaseModel, on_interrupt: Callable[[SentRequest], None] | None = None
    ) -> AbstractContextManager[SentRequest]:
        """Send an envelope; see `send_request`."""
        return send_request(self.connection, self.target, kind, payload, self.timeout_seconds, on_interrupt)

    def ask_status(self, kind: str, payload: BaseModel) -> Status:
        """Send an envelope, and return the status that answers it."""
        with self.send(kind, payload) as sent:
            return sent.next_status()

    def ask(self, payload: BaseModel, kind: str, model: type[P]) -> P:
        """Send a request and return its answer. Raises `RequestRefused` for a status or an answer that refuses it."""
        with self.send(kind, payload) as sent:
            while True:
                answered, body = sent.next_answer(CONTROL_ANSWERS[kind], kinds.PARTICIPANT_STATUS)
                if answered != kinds.PARTICIPANT_STATUS:
                    if (error := body.get("error")) is not None:
                        raise RequestRefused(self.target, str(error))
                    return parse_answer(model, body, self.target)
                if (problem := refusal_in(parse_answer(Status, body, self.target).status)) is not None:
                    raise RequestRefused(self.target, problem)

    def print(self, text: str, outcome: Mapping[str, Any]) -> None:
        """Print the participant's id and the outcome, or JSON with `--json`."""
        terminal.print_outcome(f"{self.target}: {text}", {"participant": self.target, **outcome})


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRequest(TargetedRequest):
    """A request that takes a model call."""

    timeout: TimeoutOption = ANSWER_SECONDS

    @property
    def timeout_seconds(self) -> float:
        """How long to wait for the answer."""
        return self.timeout


def _calls(status: Status | None) -> int | None:
    """Return the number of model calls that a participant has made; None if unknown."""
    spending = report_of(status).spending
    return None if spending is None or spending.calls is None else spending.calls + spending.unreported_calls


def _number_of_call(before: int | None, now: int | None) -> str:
    """Format the number of the running call from the counts before the request and now; empty if unknown."""
    return f"call {1 + now - before}" if now is not None and before is not None and now > before else ""


def parse_answer(model: type[P], body: Mapping[str, Any], peer: str) -> P:
    """Read the payload of an answer of this peer. Raises `BadAnswer`."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise BadAnswer(peer, first_problem(error)) from None


def typed_payload(model: type[P], where: str, **values: Any) -> P:
    """Build a payload from typed values. Raises `ConfigError` naming the argument `where`."""
    try:
        return model(**values)
    except ValidationError as error:
        raise ConfigError(where, expectation(error.errors()[0])) from None


def new_envelope(
    api: GatewayApi,
    kind: str,
    payload: BaseModel | Mapping[str, Any],
    *to: str,
    correlation_id: tuple[str, ...] = (),
    context: str | None = None,
) -> Envelope:
    """Return an envelope from the participant of `api`, with a new id and the current time."""
    return Envelope.write(
        kind,
        id=str(uuid4()),
        ts=wire_timestamp(datetime.now(UTC)),
        sender=api.participant,
        to=to,
        correlation_id=correlation_id,
        context=context,
        payload=payload,
    )


def first_board(events: SpaceEvents) -> Board:
    """Return the board at the start of a stream of events."""
    while (event := events.next()).name != "board":
        pass
    return Board.model_validate(event.body)


def check_known(api: GatewayApi, board: Board, participant: str) -> BoardEntry:
    """Return the board's entry of a participant. Raises `NoSuchParticipant`."""
    entry = entry_of(board, participant)
    if entry is None:
        raise NoSuchParticipant(participant, api.space, [one.id for one in board.participants])
    return entry


def check_member(api: GatewayApi, board: Board, participant: str) -> None:
    """Raise `NoSuchParticipant` or `ParticipantOffline` unless the participant is connected."""
    if not check_known(api, board, participant).connected:
        config = configuration_at(api.run_path) if api.run() is not None else None
        section = config.participants.get(participant) if config is not None else None
        has_program = section is not None and section.has_program
        hint = f"; `mew restart {participant}` starts it" if has_program else ""
        problem = f"'{participant}' is not connected to space '{api.space}'{hint}"
        raise ParticipantOffline(api.gateway, problem)
