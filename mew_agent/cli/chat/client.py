"""`mew client`: a connection with nothing behind it but lines of JSON, for scripts.

Owns the way between lines and messages; joining and coming back is `mew_agent.participant.client`'s business.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mew_agent.cli.app.options import Flags, OwnGatewayFlag, OwnSpaceFlag, OwnTokenFlag, help_when_alone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from anyio.streams.memory import MemoryObjectReceiveStream
    from mew_protocol.codec import StreamFrame
    from mew_protocol.envelope import Envelope

    from mew_agent.cli.app.line_io import Lines
    from mew_agent.participant.client import Client

app = typer.Typer(help="Connect by hand or from a script.", invoke_without_command=True, callback=help_when_alone)

QUIT = "quit"


@app.command(short_help="Join a space and exchange JSON lines.")
def connect(
    gateway: OwnGatewayFlag = None,
    space: OwnSpaceFlag = None,
    token: OwnTokenFlag = None,
    participant: Annotated[
        str | None, typer.Option("--participant-id", "-p", help="Who connects; else the running space's person.")
    ] = None,
    fifo_in: Annotated[
        Path | None, typer.Option("--fifo-in", help="Read lines here; else from standard input.")
    ] = None,
    fifo_out: Annotated[Path | None, typer.Option("--fifo-out", help="Write lines into this FIFO.")] = None,
    output_file: Annotated[Path | None, typer.Option("--output-file", help="Append lines to this file.")] = None,
) -> None:
    """Join a space and exchange lines: each line in is a JSON object to send, each line out one that arrived.

    `quit` ends it; the end of the input does not. Missing headers (id, ts, from) are filled in by the gateway. Data
    frames arrive as `{"type": "frame", "stream_id": ..., "data": ...}`. Gateway, space, participant and token come
    from the running space of this folder unless they are given.
    """
    from mew_agent.cli.app.line_io import Appended, Lines, Piped, Printed, lines_of_fifo, lines_of_stdin
    from mew_agent.cli.app.signals import run_until_terminated
    from mew_agent.cli.remote.identity import find_identity
    from mew_agent.participant.client import Client, Credentials

    who = find_identity(Flags(participant, token, gateway, space), token="")
    address = Credentials(who.ws_url, who.space, who.participant, who.token)
    output: Lines = Printed()
    if output_file is not None:
        output = Appended(output_file)
    elif fifo_out is not None:
        output = Piped(fifo_out, on_full=_Once(f"nobody reads {fifo_out}; lines are dropped"))
    source = lines_of_stdin() if fifo_in is None else lines_of_fifo(fifo_in)
    run_until_terminated(lambda: _exchange(Client(address), source, output))


async def _exchange(client: "Client", source: "Callable[[], Iterator[str]]", output: "Lines") -> None:
    """Carry lines both ways until `quit` or the end of the connection. Raises the `GatewayError` that ended it."""
    import anyio

    from mew_agent.cli.app.line_io import reading
    from mew_agent.errors import GatewayError

    failure: GatewayError | None = None

    async def show(message: "Envelope | StreamFrame") -> None:
        output.write(_line_of(message))

    async with reading(source) as lines, anyio.create_task_group() as tasks:
        tasks.start_soon(_send_lines, client, lines)
        try:
            await client.run(show)
        except GatewayError as error:
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _send_lines(client: "Client", lines: "MemoryObjectReceiveStream[str]") -> None:
    """Send line by line; what is no JSON object is told and left out."""
    import json

    from mew_agent.cli.app import terminal

    async for line in lines:
        if line.strip() == QUIT:
            await client.aclose()
            return
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            terminal.warn(f"not sent, no JSON: {error}")
            continue
        if isinstance(value, dict):
            await client.send_unconfirmed(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
        else:
            terminal.warn(f"not sent, an envelope is a JSON object: {line[:60]}")


def _line_of(message: "Envelope | StreamFrame") -> str:
    """What arrived as one line of JSON."""
    import json

    from mew_protocol.envelope import Envelope

    if isinstance(message, Envelope):
        return message.encode().decode()
    data = message.data if isinstance(message.data, str) else message.data.decode(errors="replace")
    return json.dumps({"type": "frame", "stream_id": message.stream_id, "data": data}, ensure_ascii=False)


class _Once:
    """Says one thing once."""

    def __init__(self, text: str) -> None:
        self._text: str | None = text

    def __call__(self) -> None:
        from mew_agent.cli.app import terminal

        text, self._text = self._text, None
        if text is not None:
            terminal.warn(text)
