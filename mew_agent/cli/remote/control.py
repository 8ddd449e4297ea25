"""`mew chat`, `compact`, `forget`, `clear`, `pause`, `resume`, `shutdown`: one request, and what answers it.

Owns what counts as the answer to each, and how it is printed. What a control does is up to the participant.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

import typer
from mew_protocol import kinds
from mew_protocol.payloads.chat import Chat
from mew_protocol.payloads.participant import (
    Clear,
    Compact,
    CompactDone,
    Forget,
    Pause,
    Resume,
    Shutdown,
    Status,
    refusal_in,
)
from pydantic import BaseModel, ValidationError

from mew_agent.cli.app import terminal
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.options import (
    ConnectionOptions,
    JsonOption,
    TargetArgument,
    TimeoutOption,
    option,
    with_option_groups,
)
from mew_agent.cli.board import words
from mew_agent.cli.remote.proposals import announce_approvals
from mew_agent.cli.remote.request import ParticipantOffline, SentRequest, send_request
from mew_agent.errors import ConfigError, NotConnected, PeerError, PeerTimeout

ANSWER_SECONDS: Final = 120.0
STATUS_SECONDS: Final = 30.0

_LAST_STATUS_SECONDS: Final = 3.0
"""How long to wait for the status that follows a compaction and carries the new figures."""

P = TypeVar("P", bound=BaseModel)

ReasonOption = Annotated[str | None, option("--reason TEXT", "Reason to send to the participant.")]


@dataclass(frozen=True, slots=True)
class ControlArguments:
    """A control that a status answers, as given on the command line."""

    target: TargetArgument
    reason: ReasonOption = None
    timeout: TimeoutOption = STATUS_SECONDS
    as_json: JsonOption = False


@with_option_groups
def chat(
    target: TargetArgument,
    words_typed: Annotated[list[str], typer.Argument(metavar="TEXT", help="Message; `-` reads standard input.")],
    timeout: TimeoutOption = ANSWER_SECONDS,
    *,
    as_json: JsonOption = False,
    connection: ConnectionOptions,
) -> int:
    """Send a message and print the answer.

    `mew chat PARTICIPANT - < FILE` sends a text file.

    Exits with code 1 if the agent answers that it failed, for instance because it cannot reach its model.
    """
    text = " ".join(words_typed)
    if text == "-":
        text = terminal.read_text(None, "TEXT")
    if not text.strip():
        raise ConfigError("TEXT", "is empty", "a message, or `-` and a message on standard input")
    with send_request(connection, target, kinds.CHAT, Chat(text=text), timeout) as request:
        if request.is_paused:
            terminal.warn(f"'{target}' is paused and answers later; {request.resume_hint}")
        announce_approvals(connection, request)
        _, body = next(request.answers(kinds.CHAT, accept_uncorrelated=True))
        terminal.print_outcome(str(body.get("text") or ""), {"participant": target, **body}, as_json=as_json)
        # An agent reports why it failed before it sends the answer about it.
        return ExitCode.DONE if words.failure(request.last_status) is None else ExitCode.FAILED


@with_option_groups
def compact(
    target: TargetArgument,
    target_tokens: Annotated[
        int | None,
        option("--target-tokens N", "Compact to at most N tokens (default: keep only the newest turns).", min=0),
    ] = None,
    target_percent: Annotated[
        int | None, option("--target-percent N", "Compact to at most N % of the window.", min=1, max=100)
    ] = None,
    reason: ReasonOption = None,
    timeout: TimeoutOption = ANSWER_SECONDS,
    *,
    interrupt: Annotated[
        bool, option("--interrupt", "Interrupt the running turn of an ACP agent; it continues afterwards.")
    ] = False,
    as_json: JsonOption = False,
    connection: ConnectionOptions,
) -> int:
    """Compact a participant's context and report the tokens freed.

    Exits with code 3 if the participant skips the compaction.
    """
    payload = Compact(
        target_tokens=target_tokens, target_percent=target_percent, reason=reason, interrupt=interrupt or None
    )
    with (
        send_request(connection, target, kinds.PARTICIPANT_COMPACT, payload, timeout) as request,
        _undo_named_if_interrupted(target),
    ):
        announced = False
        if not as_json:
            announce_approvals(connection, request)
            request.on_status.append(lambda: _print_progress(request))
        for kind, body in request.answers(kinds.PARTICIPANT_STATUS, kinds.PARTICIPANT_COMPACT_DONE):
            if kind == kinds.PARTICIPANT_COMPACT_DONE:
                return _print_compaction(request, parse_answer(CompactDone, body), target_tokens, as_json=as_json)
            status = parse_answer(Status, body)
            if status.status == "compacting" and not announced and not as_json:
                announced = True
                size = f" {words.tokens(status)} tokens" if status.tokens is not None else ""
                terminal.print_line(f"{target}: compacting{size} ...")
            elif status.status == "compacted" and not words.has_context(status) and not status.messages_in_context:
                outcome = {"participant": target, "skipped": True, "reason": "no_context"}
                terminal.print_outcome(f"{target}: skipped, it {words.NO_CONTEXT}", outcome, as_json=as_json)
                return ExitCode.SKIPPED
            elif status.status == "compacted":
                text = f"{target}: compacted; tokens freed unknown (it lacks the capability participant/compact-done)"
                terminal.print_outcome(text, {"participant": target, "status": _json_of(status)}, as_json=as_json)
                return ExitCode.FAILED
    raise AssertionError("`answers` ends by raising only")


def _print_progress(request: SentRequest) -> None:
    report = request.last_status.context if request.last_status is not None else None
    if report is not None and report.progress is not None:
        terminal.print_line(f"{request.participant}: compacting, {words.progress(report.progress)} ...")


@contextmanager
def _undo_named_if_interrupted(target: str) -> Iterator[None]:
    """Ctrl-C ends the command and not the compaction, so say how to get back what it removes."""
    try:
        yield
    except KeyboardInterrupt:
        terminal.warn(f"{target} continues to compact; `mew context undo {target}` restores what that removes")
        raise


@with_option_groups
def forget(
    target: TargetArgument,
    *,
    newest: Annotated[bool, option("--newest/--oldest", "Drop the newest or the oldest messages.")] = False,
    entries: Annotated[
        int | None, option("--entries, -n N", "Number of messages to drop (default: half of them).", min=1)
    ] = None,
    timeout: TimeoutOption = STATUS_SECONDS,
    as_json: JsonOption = False,
    connection: ConnectionOptions,
) -> int:
    """Drop messages from one end of a participant's history."""
    payload = Forget(direction="newest" if newest else "oldest", entries=entries)
    with send_request(connection, target, kinds.PARTICIPANT_FORGET, payload, timeout) as request:
        before = request.last_status.messages_in_context if request.last_status is not None else None
        status = next_status(request, passing=("compacting",))
        word = status.status or "answered"
        if word == "compacted" and before is not None:
            # Agents report `compacted` for any history that got smaller; the number of messages says more here.
            dropped = max(0, before - status.messages_in_context)
            word = f"forgot {words.count_of(dropped, 'message')}" if dropped else "had nothing to forget"
        return _print_status(target, word, status, as_json=as_json)


@with_option_groups
def clear(control: ControlArguments, connection: ConnectionOptions) -> int:
    """Clear a participant's history."""
    return _control(connection, control, kinds.PARTICIPANT_CLEAR, Clear(reason=control.reason))


@with_option_groups
def pause(
    *,
    seconds: Annotated[
        float | None, option("--seconds SECONDS", "Resume after this time (default: stay paused).", min=0)
    ] = None,
    control: ControlArguments,
    connection: ConnectionOptions,
) -> int:
    """Pause a participant."""
    payload = Pause(timeout_seconds=seconds, reason=control.reason)
    return _control(connection, control, kinds.PARTICIPANT_PAUSE, payload)


@with_option_groups
def resume(control: ControlArguments, connection: ConnectionOptions) -> int:
    """Resume a paused participant."""
    return _control(connection, control, kinds.PARTICIPANT_RESUME, Resume(reason=control.reason))


@with_option_groups
def shutdown(control: ControlArguments, connection: ConnectionOptions) -> int:
    """Shut a participant down.

    It leaves the space, and its program ends. The gateway refuses what it sends until it joins again.
    """
    target, payload = control.target, Shutdown(reason=control.reason)
    with send_request(connection, target, kinds.PARTICIPANT_SHUTDOWN, payload, control.timeout) as request:
        try:
            for _, body in request.answers(kinds.PARTICIPANT_STATUS):
                status = parse_answer(Status, body)
                if refusal_in(status.status) is not None:
                    return _print_status(target, str(status.status), status, as_json=control.as_json)
        except ParticipantOffline:
            outcome = {"participant": target, "shut_down": True}
            terminal.print_outcome(f"{target}: shut down", outcome, as_json=control.as_json)
            return ExitCode.DONE
    raise AssertionError("`answers` ends by raising only")


def _control(connection: ConnectionOptions, control: ControlArguments, kind: str, payload: BaseModel) -> int:
    """Send a control, wait for the status that answers it, and print it."""
    with send_request(connection, control.target, kind, payload, control.timeout) as request:
        status = next_status(request)
        return _print_status(request.participant, status.status or "answered", status, as_json=control.as_json)


def next_status(request: SentRequest, *, passing: tuple[str, ...] = ()) -> Status:
    """The status that answers. Statuses named in `passing` come before the answer and are skipped."""
    statuses = (parse_answer(Status, body) for _, body in request.answers(kinds.PARTICIPANT_STATUS))
    return next(status for status in statuses if status.status not in passing)


def _print_status(participant: str, word: str, status: Status, *, as_json: bool) -> int:
    figures = f"; {_figures(status)}" if words.has_context(status) else ""
    outcome = {"participant": participant, **_json_of(status)}
    terminal.print_outcome(f"{participant}: {words.state(word)}{figures}", outcome, as_json=as_json)
    return ExitCode.SKIPPED if refusal_in(status.status) is not None else ExitCode.DONE


def _print_compaction(request: SentRequest, done: CompactDone, target_tokens: int | None, *, as_json: bool) -> int:
    name = request.participant
    outcome = {"participant": name, **_json_of(done)}
    if done.skipped:
        text = f"{name}: skipped, {_why_skipped(request, done, target_tokens)}"
        terminal.print_outcome(text, outcome, as_json=as_json)
        return ExitCode.SKIPPED
    freed = "an unknown number of" if done.freed_tokens is None else f"{done.freed_tokens:,}"
    messages = "" if done.freed_messages is None else f", {words.count_of(done.freed_messages, 'message')}"
    cost = f"; summary cost {done.cost}" if done.cost is not None and str(done.cost) else ""
    status = _following_status(request)
    now = f"; now {_figures(status)}" if status is not None else ""
    if status is not None:
        outcome["status"] = _json_of(status)
    terminal.print_outcome(f"{name}: freed {freed} tokens{messages}{cost}{now}", outcome, as_json=as_json)
    return ExitCode.DONE


def _why_skipped(request: SentRequest, done: CompactDone, target_tokens: int | None) -> str:
    reason = done.reason or "no reason given"
    if reason != "already_below_target" or target_tokens is None:
        return words.skipped(reason)
    size = f" ({words.tokens(request.last_status)})" if request.last_status is not None else ""
    return f"already below {target_tokens:,}{size}"


def _following_status(request: SentRequest) -> Status | None:
    """The status that announces the end of the compaction, or None if it does not come soon."""
    request.deadline = min(request.deadline, time.monotonic() + _LAST_STATUS_SECONDS)
    try:
        return next_status(request)
    except (PeerTimeout, NotConnected):
        return None


def _figures(status: Status) -> str:
    if status.tokens is None:
        return f"? of {words.window(status)} ({words.reason(status)})"
    basis = words.basis(status)
    later = "; exact after its next call" if basis == "projected" else ""
    return f"{status.tokens:,} of {words.window(status)} ({basis}{later})"


def _json_of(answer: BaseModel) -> dict[str, Any]:
    return answer.model_dump(mode="json", by_alias=True, exclude_unset=True)


def parse_answer(model: type[P], body: Mapping[str, Any]) -> P:
    """Read the payload of an answer. Raises `PeerError`."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise PeerError(f"received an invalid answer: {error.errors(include_url=False)[0]['msg']}") from None
