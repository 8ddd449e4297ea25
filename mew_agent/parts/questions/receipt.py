"""`mew receipt`: whether the receivers of a message have read it, and its form in their contexts.

Finds the message in the space's history, asks the participants, and prints their receipts.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import repeat
from typing import Annotated, Any, Final

import typer
from mew_board import receipt_words
from mew_board.quoting import clean
from mew_board.visible import short_line
from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.participant import Board
from mew_protocol.payloads.read_receipts import ReadReceipt, ReadReceipts, RequestReceipts

from mew_agent.cli.app import terminal
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.options import OUTPUT, ConnectionOptions
from mew_agent.cli.remote.http_api import GatewayApi
from mew_agent.cli.remote.identity import find_gateway
from mew_agent.cli.remote.sent_request import ParticipantOffline, RequestRefused, TargetedRequest
from mew_agent.errors import ConfigError, PeerError
from mew_agent.gateway_http import MessagePages
from mew_agent.participant.receipts import stored_receipt

MIN_ID_CHARS: Final = 4
"""How much of an id is enough to name a message."""

SHOWN_CHARS: Final = 60


def receipt(
    *,
    message: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="Id of a message, or its beginning (default: the newest that you sent)."),
    ] = None,
    connection: ConnectionOptions,
) -> int:
    """Show the read receipts of a message.

    Asks each agent that the message is addressed to. --json prints one object per agent. Exits with code 3 if no model
    has read it.
    """
    api = find_gateway(connection)
    found, position = _find(api, message)
    receipts = []
    for name in _receivers(api.board(), found):
        request = TargetedRequest(target=name, connection=connection)
        receipts.append(_receipt_of(request, found, position))
    if OUTPUT.is_json:
        terminal.print_json([one.model_dump(mode="json", exclude_none=True) for one in receipts])
    else:
        terminal.print_lines(_lines(found, position, receipts))
    return ExitCode.DONE if any(one.is_read for one in receipts) else ExitCode.SKIPPED


def _find(api: GatewayApi, message: str | None) -> tuple[dict[str, Any], str | None]:
    """Return the newest stored message by the beginning of its id, with its position. None: our newest chat.

    Reads the history backwards, up to the page with the message. Raises `ConfigError`.
    """
    if message is not None and len(message) < MIN_ID_CHARS:
        raise ConfigError("ID", f"'{message}' is too short", f"at least {MIN_ID_CHARS} characters of an id")
    for page in api.pages(MessagePages(api.space, api.participant, newest_first=True)):
        places = page.get("positions") or repeat(None)
        for found, place in reversed(list(zip(page["messages"], places, strict=False))):
            if _is_meant(found, message, api.participant):
                return found, place
    problem = (
        f"'{api.participant}' has sent no message" if message is None else f"no message '{message}' in the history"
    )
    raise ConfigError("ID", problem, "an id that `mew history --json` prints")


def _is_meant(found: Mapping[str, Any], message: str | None, sender: str) -> bool:
    if message is None:
        return found.get("from") == sender and found.get("kind") == kinds.CHAT
    return str(found.get("id")).startswith(message)


def _receivers(board: Board, message: dict[str, Any]) -> tuple[str, ...]:
    """Return a message's addressees; for a broadcast, the participants that report a context."""
    if message.get("to"):
        return tuple(message["to"])
    reporting = (one.id for one in board.participants if one.status is not None and one.status.context is not None)
    return tuple(name for name in reporting if name != message.get("from"))


def _receipt_of(request: TargetedRequest, message: dict[str, Any], position: str | None) -> ReadReceipt:
    """Ask one participant for a receipt. Without an answer, the receipt only says that the gateway stored the
    message.
    """
    payload = RequestReceipts(ids=(str(message["id"]),), sender=str(message.get("from")))
    problem = "it sent no receipt"
    try:
        answer = request.ask(payload, kinds.PARTICIPANT_REQUEST_RECEIPTS, ReadReceipts)
        with suppress(IndexError):
            return answer.receipts[0].model_copy(update={"position": position})
    except (ParticipantOffline, RequestRefused, PeerError) as error:
        problem = str(error)
    return stored_receipt(Envelope.model_validate(message), request.target, position, problem)


def _lines(message: dict[str, Any], position: str | None, receipts: list[ReadReceipt]) -> Iterator[str]:
    body = message.get("payload") or {}
    shown = short_line(str(body.get("text") or body.get("method") or message.get("kind")), SHOWN_CHARS)
    yield clean(f"{message['id']}  {message.get('from')}: {shown}")
    if position is not None:
        yield f"  stored at {position}"
    if not receipts:
        yield "  it is for no agent of this space"
    for one in receipts:
        yield f"  {receipt_words.line(one)}"
        yield from (f"    {step}" for step in receipt_words.story(one, terminal.now()))
