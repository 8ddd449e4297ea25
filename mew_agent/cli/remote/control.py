"""`mew chat`, `compact`, `forget`, `clear`, `reset`, `pause`, `resume`, `shutdown`: request and answer.

Sends each control, recognises its answer and prints it.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Final

import typer
from mew_board import words
from mew_board.figures import size_after
from mew_protocol import kinds
from mew_protocol.payloads.chat import Acknowledge, Chat, ChatCancel
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
from mew_protocol.payloads.read_receipts import ReadReceipt
from mew_protocol.payloads.text_fit import WOULD_OVERFLOW, Fit
from pydantic import BaseModel

from mew_agent.cli.app import terminal
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.options import OUTPUT, ReasonOption, option
from mew_agent.cli.remote.decisions import announce_approvals
from mew_agent.cli.remote.identity import configuration_at
from mew_agent.cli.remote.sent_request import (
    ParticipantOffline,
    SentRequest,
    SlowRequest,
    TargetedRequest,
    new_envelope,
    parse_answer,
)
from mew_agent.errors import ConfigError, GatewayError, NotConnected, PeerTimeout

_LAST_STATUS_SECONDS: Final = 3.0
"""How long to wait for the status that follows a compaction and carries the new figures."""


def chat(
    request: SlowRequest,
    words_typed: Annotated[list[str], typer.Argument(metavar="TEXT", help="Message; `-` reads standard input.")],
    *,
    urgent: Annotated[
        bool, option("--urgent", "Ask the agent to read it before the next step of a running turn.")
    ] = False,
) -> int:
    """Send a message and print the answer.

    `mew chat PARTICIPANT - < FILE` sends a text file. Ctrl-C cancels the question.

    Exits with code 1 if the agent answers that it failed, for instance because it cannot reach its model. With --json
    the key `failure` says why.
    """
    text = " ".join(words_typed)
    if text == "-":
        text = terminal.read_text(None, "TEXT")
    if not text.strip():
        raise ConfigError("TEXT", "is empty", "a message, or `-` and a message on standard input")
    with request.send(kinds.CHAT, Chat(text=text, receipts=True, urgent=urgent or None), _cancel_question) as sent:
        if _answers_no_chats(sent):
            name = request.target
            terminal.warn(f"'{name}' offers tools and does not answer chats; `mew tools {name}` lists them")
            return ExitCode.NO_ANSWER
        if sent.is_paused:
            terminal.warn(f"'{request.target}' is paused and answers later; {sent.resume_hint}")
        announce_approvals(sent)
        body, receipt = _answer(sent)
        _print_answer(request, body, receipt)
        ids = {"status_id": sent.last_status_id, "id_before": sent.status_id_before}
        return ExitCode.DONE if words.chat_failure(body, sent.last_status, **ids) is None else ExitCode.FAILED


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


def _print_answer(request: TargetedRequest, body: Mapping[str, Any], receipt: ReadReceipt | None) -> None:
    outcome = {"participant": request.target, **body}
    if receipt is not None:
        outcome["receipt"] = receipt.model_dump(mode="json", exclude_none=True)
    terminal.print_outcome(str(body.get("text") or ""), outcome)
    if receipt is not None and receipt.is_read and not OUTPUT.is_json:
        terminal.note(str(receipt))


def _answer(sent: SentRequest) -> tuple[Mapping[str, Any], ReadReceipt | None]:
    """Return the payload of the answer to a chat, and the newest receipt of the chat.

    Print a warning if the chat does not fit into the context now.
    """
    receipt: ReadReceipt | None = None
    while True:
        kind, body = sent.next_answer(kinds.CHAT, kinds.CHAT_ACKNOWLEDGE, accept_uncorrelated=True)
        if kind == kinds.CHAT:
            return body, receipt
        known = parse_answer(Acknowledge, body, sent.participant)
        receipt = known.receipt or receipt
        if receipt is not None and receipt.state == "queued" and receipt.reason is not None:
            terminal.note(str(receipt))
        if known.status == WOULD_OVERFLOW and known.fit is not None:
            does = f"{known.fit}; the agent {_makes_room(known.fit, is_held=bool(known.held))}"
            terminal.warn(f"the message does not fit into the context of '{sent.participant}' now: {does}")


def _makes_room(fit: Fit, *, is_held: bool) -> str:
    """Return how an agent handles a message that does not fit now."""
    if is_held:
        return "holds it until there is room"
    return "compacts first" if fit.fits_after_compaction else "tries to read it, and its model may refuse it"


def _answers_no_chats(sent: SentRequest) -> bool:
    """Return True if space.yaml gives the participant a type that answers no chats."""
    config = configuration_at(sent.api.run_path)
    known = config.participants.get(sent.participant) if config is not None else None
    return known is not None and not known.answers_chats


def _cancel_question(sent: SentRequest) -> None:
    """Cancel the question, and print its state."""
    payload, about = ChatCancel(reason="its sender pressed Ctrl-C"), (sent.sent.id,)
    cancel = new_envelope(sent.api, kinds.CHAT_CANCEL, payload, sent.participant, correlation_id=about)
    try:
        sent.api.send(cancel.as_dict())
    except GatewayError as error:
        terminal.warn(f"{sent.participant} may continue to answer, see `mew history`: {error}")
    else:
        terminal.warn(f"asked {sent.participant} to cancel the question")


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
