"""`mew chat`: asks a participant, and prints the answer and the receipt of the question."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from mew_board import words
from mew_protocol import kinds
from mew_protocol.payloads.chat import Acknowledge, Chat, ChatCancel
from mew_protocol.payloads.read_receipts import ReadReceipt
from mew_protocol.payloads.text_fit import WOULD_OVERFLOW, Fit

from mew_agent.cli.app import terminal
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.options import OUTPUT, option
from mew_agent.cli.remote.decisions import announce_approvals
from mew_agent.cli.remote.identity import configuration_at
from mew_agent.cli.remote.sent_request import SentRequest, SlowRequest, TargetedRequest, new_envelope, parse_answer
from mew_agent.errors import ConfigError, GatewayError


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
        kind, body = sent.next_answer(kinds.CHAT, kinds.CHAT_ACKNOWLEDGE)
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
