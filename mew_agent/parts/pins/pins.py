"""`mew pin` and `unpin`: prints the list of pins, and the outcome."""

from typing import Annotated, Final

import typer
from mew_board import words
from mew_board.quoting import clean
from mew_protocol import kinds
from mew_protocol.context_report import pin_hash
from mew_protocol.payloads.participant import PinRequest, RequestStatus, UnpinRequest

from mew_agent.cli.app import terminal
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.options import OUTPUT
from mew_agent.cli.remote.sent_request import TargetedRequest, typed_payload
from mew_agent.errors import ConfigError

_PINNED_TEXT_CELLS: Final = 100


def pin(
    request: TargetedRequest,
    words_typed: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Text to pin (default: list the pins).")
    ] = None,
) -> int:
    """Keep a text in every prompt of an agent, or list its pins.

    Exits with code 3 if the agent refuses.
    """
    if not words_typed:
        _list_pins(request)
        return ExitCode.DONE
    text = " ".join(words_typed)
    if not text.strip():
        raise ConfigError("TEXT", "is empty", "the text to pin")
    status = request.ask_status(kinds.PARTICIPANT_PIN, typed_payload(PinRequest, "TEXT", text=text))
    pins = status.context.pins if status.context is not None else None
    found = next((one for one in pins or () if one.hash == pin_hash(text)), None)
    outcome = {"status": status.status}
    if found is None:
        request.print(words.state(status.status or "answered"), outcome)
        return ExitCode.SKIPPED
    already = "already " if status.status == "already_pinned" else ""
    text = f"{already}pinned as {clean(found.id)}, ~{found.tokens:,} tokens, hash {found.hash}"
    request.print(text, {**outcome, "pin": found.model_dump(mode="json")})
    return ExitCode.DONE


def unpin(
    request: TargetedRequest,
    name: Annotated[str, typer.Argument(metavar="PIN", help="Id of the pin, or its whole text.")],
) -> int:
    """Remove a pinned text from an agent.

    Exits with code 3 if the agent refuses.
    """
    status = request.ask_status(kinds.PARTICIPANT_UNPIN, typed_payload(UnpinRequest, "PIN", pin=name))
    request.print(words.state(status.status or "answered"), {"status": status.status})
    return ExitCode.DONE if status.status == "unpinned" else ExitCode.SKIPPED


def _list_pins(request: TargetedRequest) -> None:
    pins = request.ask_status(kinds.PARTICIPANT_REQUEST_STATUS, RequestStatus(fields=("pins",))).pins or ()
    if OUTPUT.is_json or not pins:
        request.print("nothing is pinned", {"pins": [one.model_dump(mode="json") for one in pins]})
        return
    width = max(words.cells(clean(one.id)) for one in pins)
    for one in pins:
        text = words.clip(clean(" ".join(one.text.split())), _PINNED_TEXT_CELLS)
        about = f"{clean(one.hash)}  {words.pin(one)}"
        terminal.print_line(f"{clean(one.id):<{width}}  {about}  {text}")
