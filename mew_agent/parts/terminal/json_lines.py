"""`mew connect --json`: a connection that reads and writes lines of JSON, for scripts.

Translates between lines and messages. `mew_agent.participant.client` joins and reconnects.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from mew_protocol.envelope import Envelope

from mew_agent.cli.app import terminal
from mew_agent.cli.app.options import option
from mew_agent.cli.remote.identity import Identity
from mew_agent.errors import first_cause
from mew_agent.participant.client import Client, Credentials
from mew_agent.participant.confirmed_delivery import Message
from mew_agent.participant.gaps import StreamGap
from mew_agent.parts.shared.line_io import (
    WriteLine,
    fifo_writer,
    file_writer,
    lines_of_fifo,
    lines_of_stdin,
    read_lines,
)
from mew_agent.program import run_until_signal

QUIT: Final = "quit"


@dataclass(frozen=True, slots=True)
class LineFiles:
    """The files for lines of JSON, as given on the command line."""

    fifo_in: Annotated[
        Path | None, option("--fifo-in FILE", "With --json: FIFO to read from (default: standard input).")
    ] = None
    fifo_out: Annotated[Path | None, option("--fifo-out FILE", "With --json: FIFO to write lines to.")] = None
    output_file: Annotated[Path | None, option("--output-file FILE", "With --json: file to append lines to.")] = None

    def exchange(self, who: Identity) -> None:
        """Join as a participant, and exchange lines until `quit` or a signal."""
        credentials = Credentials(who.ws_url, who.space, who.participant, who.token)
        write: WriteLine = partial(print, flush=True)
        if self.output_file is not None:
            write = file_writer(self.output_file)
        elif self.fifo_out is not None:
            problem = f"{self.fifo_out} has no reader; dropping lines"
            write = fifo_writer(self.fifo_out, on_full=lambda: terminal.warn(problem))
        source = lines_of_stdin() if self.fifo_in is None else lines_of_fifo(self.fifo_in)
        run_until_signal(lambda: exchange_lines(Client(credentials), source, write))


async def exchange_lines(client: Client, source: Iterable[str], write_line: WriteLine) -> None:
    """Exchange lines in both directions until `quit` or the end of the connection. Raises the `GatewayError` that ended
    it.
    """

    async def write(message: Message) -> None:
        write_line(_line_of(message))

    try:
        async with read_lines(source) as lines, anyio.create_task_group() as tasks:
            tasks.start_soon(_send_lines, client, lines)
            await client.run(write)
            tasks.cancel_scope.cancel()
    except ExceptionGroup as failures:
        raise first_cause(failures) from None


async def _send_lines(client: Client, lines: MemoryObjectReceiveStream[str]) -> None:
    """Send line by line. A line that is not a JSON object is reported and skipped."""
    async for line in lines:
        if line.strip() == QUIT:
            await client.aclose()
            return
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            terminal.warn(f"not sent, not JSON: {error}")
            continue
        if isinstance(value, dict):
            await client.send_unconfirmed(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
        else:
            terminal.warn(f"not sent, not a JSON object: {line[:60]}")


def _line_of(message: Message) -> str:
    """Return a received message as one line of JSON."""
    if isinstance(message, Envelope):
        return message.encode().decode()
    if isinstance(message, StreamGap):
        return terminal.json_line({"type": "stream_gap", "stream_id": message.stream_id, "missed": message.missed})
    data = message.data if isinstance(message.data, str) else message.data.decode(errors="replace")
    return terminal.json_line({"type": "frame", "stream_id": message.stream_id, "data": data})
