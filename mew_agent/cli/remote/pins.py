"""`mew pin` and `mew unpin`: texts that stay word for word in every prompt of an agent.

Owns how pins are listed. Which texts fit is up to the agent.
"""

from typing import Annotated, Final

import typer
from mew_protocol import kinds
from mew_protocol.context_report import pin_hash
from mew_protocol.payloads.participant import PinnedText, PinRequest, RequestStatus, Status, UnpinRequest
from pydantic import BaseModel

from mew_agent.cli.app import terminal
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.options import ConnectionOptions, JsonOption, TargetArgument, TimeoutOption, with_option_groups
from mew_agent.cli.board import words
from mew_agent.cli.remote.control import STATUS_SECONDS, next_status
from mew_agent.cli.remote.request import send_request
from mew_agent.errors import ConfigError

_TEXT_CELLS: Final = 100


@with_option_groups
def pin(
    target: TargetArgument,
    words_typed: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Text to pin (default: list what is pinned).")
    ] = None,
    timeout: TimeoutOption = STATUS_SECONDS,
    *,
    as_json: JsonOption = False,
    connection: ConnectionOptions,
) -> int:
    """Keep a text in every prompt of an agent, or list its pins.

    Exits with code 3 if the agent refuses.
    """
    if not words_typed:
        return _list(connection, target, timeout, as_json=as_json)
    text = " ".join(words_typed)
    if not text.strip():
        raise ConfigError("TEXT", "is empty", "the text to pin")
    status = _control(connection, target, kinds.PARTICIPANT_PIN, PinRequest.model_construct(text=text), timeout)
    pins = status.context.pins if status.context is not None else None
    found = next((one for one in pins or () if one.hash == pin_hash(text)), None)
    outcome = {"participant": target, "status": status.status}
    if found is None:
        terminal.print_outcome(f"{target}: {words.state(status.status or 'answered')}", outcome, as_json=as_json)
        return ExitCode.SKIPPED
    already = "already " if status.status == "already_pinned" else ""
    text = f"{target}: {already}pinned as {words.clean(found.id)}, ~{found.tokens:,} tokens, hash {found.hash}"
    terminal.print_outcome(text, {**outcome, "pin": found.model_dump(mode="json")}, as_json=as_json)
    return ExitCode.DONE


@with_option_groups
def unpin(
    target: TargetArgument,
    name: Annotated[str, typer.Argument(metavar="PIN", help="Id of the pin, or its whole text.")],
    timeout: TimeoutOption = STATUS_SECONDS,
    *,
    as_json: JsonOption = False,
    connection: ConnectionOptions,
) -> int:
    """Remove a text that is pinned in an agent.

    Exits with code 3 if the agent refuses.
    """
    status = _control(connection, target, kinds.PARTICIPANT_UNPIN, UnpinRequest.model_construct(pin=name), timeout)
    text = f"{target}: {words.state(status.status or 'answered')}"
    terminal.print_outcome(text, {"participant": target, "status": status.status}, as_json=as_json)
    return ExitCode.DONE if status.status == "unpinned" else ExitCode.SKIPPED


def _list(connection: ConnectionOptions, target: str, timeout_seconds: float, *, as_json: bool) -> int:
    request = RequestStatus(fields=("pins",))
    status = _control(connection, target, kinds.PARTICIPANT_REQUEST_STATUS, request, timeout_seconds)
    pins = status.pins or ()
    if as_json:
        terminal.print_json({"participant": target, "pins": [one.model_dump(mode="json") for one in pins]})
        return ExitCode.DONE
    width = max((words.cells(words.clean(one.id)) for one in pins), default=0)
    terminal.print_lines(_line(one, width) for one in pins)
    if not pins:
        terminal.print_line(f"{target}: nothing is pinned")
    return ExitCode.DONE


def _line(one: PinnedText, width: int) -> str:
    text = words.clip(words.clean(" ".join(one.text.split())), _TEXT_CELLS)
    name, size = words.clean(one.id).ljust(width), f"~{one.tokens:,} tokens"
    return f"{name}  {words.clean(one.hash)}  {size}  from {words.clean(one.origin)}  {text}"


def _control(
    connection: ConnectionOptions, participant: str, kind: str, payload: BaseModel, timeout_seconds: float
) -> Status:
    with send_request(connection, participant, kind, payload, timeout_seconds) as request:
        return next_status(request)
