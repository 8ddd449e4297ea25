"""`mew compact`, `forget`, `clear`, `reset`, `pause`, `resume`, `shutdown`: request and answer.

Sends each control, recognises its answer and prints it.
"""

import time
from contextlib import suppress
from typing import Annotated, Any, Final

from mew_board import words
from mew_board.figures import size_after
from mew_protocol import kinds
from mew_protocol.payloads.participant import (
    Clear,
    Compact,
    CompactDone,
    Forget,
    Pause,
    Restart,
    Resume,
    Shutdown,
    Status,
    refusal_in,
)
from pydantic import BaseModel

from mew_agent.cli.app import terminal
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.options import OUTPUT, ReasonOption, option
from mew_agent.cli.remote.decisions import announce_approvals
from mew_agent.cli.remote.sent_request import (
    ParticipantOffline,
    SentRequest,
    SlowRequest,
    TargetedRequest,
    parse_answer,
)
from mew_agent.errors import NotConnected, PeerTimeout

_LAST_STATUS_SECONDS: Final = 3.0
"""How long to wait for the status that follows a compaction and carries the new figures."""


def compact(
    *,
    target_tokens: Annotated[
        int | None,
        option("--target-tokens N", "Compact to at most N tokens (default: keep only the newest turns).", min=0),
    ] = None,
    target_percent: Annotated[
        int | None, option("--target-percent N", "Compact to at most N % of the window.", min=1, max=100)
    ] = None,
    reason: ReasonOption = None,
    interrupt: Annotated[
        bool,
        option(
            "--interrupt", "Interrupt the turn of an agent that cannot compact during one; it continues afterwards."
        ),
    ] = False,
    request: SlowRequest,
) -> int:
    """Compact a participant's context and report the tokens freed.

    Exits with code 3 if the participant skips the compaction.
    """
    payload = Compact(
        target_tokens=target_tokens, target_percent=target_percent, reason=reason, interrupt=interrupt or None
    )
    with request.send(kinds.PARTICIPANT_COMPACT, payload, _name_undo) as sent:
        if not OUTPUT.is_json:
            announce_approvals(sent)
        kind, body = sent.next_answer(kinds.PARTICIPANT_STATUS, kinds.PARTICIPANT_COMPACT_DONE)
        if kind == kinds.PARTICIPANT_COMPACT_DONE:
            return _print_compaction(request, sent, parse_answer(CompactDone, body, request.target), target_tokens)
        status = parse_answer(Status, body, request.target)
        return _print_compaction(request, sent, CompactDone.from_status(status), target_tokens, status)


def _name_undo(sent: SentRequest) -> None:
    """Print the command that undoes the compaction, which continues after Ctrl-C."""
    agent = sent.participant
    terminal.warn(f"{agent} continues to compact; `mew undo {agent}` restores what that removes")


def forget(
    *,
    newest: Annotated[bool, option("--newest/--oldest", "Drop the newest or the oldest messages.")] = False,
    entries: Annotated[
        int | None, option("--entries, -n N", "Number of messages to drop (default: half of them).", min=1)
    ] = None,
    request: TargetedRequest,
) -> int:
    """Drop messages from one end of a participant's history."""
    payload = Forget(direction="newest" if newest else "oldest", entries=entries)
    with request.send(kinds.PARTICIPANT_FORGET, payload) as sent:
        before = sent.last_status.messages_in_context if sent.last_status is not None else None
        status = sent.next_status()
    word = status.status
    if word in ("compacted", "forgot") and before is not None:
        dropped = max(0, before - status.messages_in_context)
        word = f"forgot {words.count_of(dropped, 'message')}" if dropped else "had nothing to forget"
    return _print_status(request, status, word)


def clear(reason: ReasonOption = None, *, request: TargetedRequest) -> int:
    """Clear a participant's history."""
    return _print_status(request, request.ask_status(kinds.PARTICIPANT_CLEAR, Clear(reason=reason)))


def reset(reason: ReasonOption = None, *, request: TargetedRequest) -> int:
    """Clear a participant's history and close its streams.

    Sends `participant/restart`. Its program keeps running. `mew restart` restarts the program and keeps the history.
    """
    return _print_status(request, request.ask_status(kinds.PARTICIPANT_RESTART, Restart(reason=reason)))


def pause(
    *,
    seconds: Annotated[
        float | None, option("--seconds SECONDS", "Resume after this time (default: stay paused).", min=0)
    ] = None,
    reason: ReasonOption = None,
    request: TargetedRequest,
) -> int:
    """Pause a participant."""
    status = request.ask_status(kinds.PARTICIPANT_PAUSE, Pause(timeout_seconds=seconds, reason=reason))
    return _print_status(request, status)


def resume(reason: ReasonOption = None, *, request: TargetedRequest) -> int:
    """Resume a paused participant."""
    return _print_status(request, request.ask_status(kinds.PARTICIPANT_RESUME, Resume(reason=reason)))


def shutdown(reason: ReasonOption = None, *, request: TargetedRequest) -> int:
    """Shut a participant down.

    It leaves the space, and its program ends. The gateway refuses its messages until it joins again.
    """
    with request.send(kinds.PARTICIPANT_SHUTDOWN, Shutdown(reason=reason)) as sent:
        try:
            while True:
                status = sent.next_status()
                if refusal_in(status.status) is not None:
                    return _print_status(request, status)
        except ParticipantOffline:
            run = sent.api.run()
            is_ours = run is not None and request.target in {*run.pids.participants, *run.exits}
            again = f"; `mew restart {request.target}` starts it again" if is_ours else ""
            request.print(f"shut down{again}", {"shut_down": True})
            return ExitCode.DONE


def _print_status(request: TargetedRequest, status: Status, word: str | None = None) -> int:
    figures = f"; {_figures(status)}" if words.has_context(status) else ""
    request.print(f"{words.state(word or status.status or 'answered')}{figures}", _json_of(status))
    return ExitCode.SKIPPED if refusal_in(status.status) is not None else ExitCode.DONE


def _print_compaction(
    request: TargetedRequest,
    sent: SentRequest,
    done: CompactDone,
    target_tokens: int | None,
    status: Status | None = None,
) -> int:
    outcome = _json_of(done)
    if done.skipped:
        request.print(words.compaction(done, target_tokens, words.tokens(sent.last_status)), outcome)
        return ExitCode.SKIPPED
    cost = f"; summary cost {done.cost}" if done.cost is not None and str(done.cost) else ""
    now = ""
    sent.deadline = min(sent.deadline, time.monotonic() + _LAST_STATUS_SECONDS)
    with suppress(PeerTimeout, NotConnected):  # the status after a compaction may be late or missing
        status = status or sent.next_status()
        now, outcome["status"] = f"; now {_figures(status)}", _json_of(status)
    request.print(f"{words.compaction(done)}{cost}{now}", outcome)
    return ExitCode.DONE


def _figures(status: Status) -> str:
    if status.tokens is None:
        return f"? of {words.window(status)} ({words.reason(status, terminal.now())})"
    return size_after(status.tokens, words.window(status), words.basis(status))


def _json_of(answer: BaseModel) -> dict[str, Any]:
    return answer.model_dump(mode="json", by_alias=True, exclude_unset=True)
