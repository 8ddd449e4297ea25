"""`mew space connect`: joins a space from a terminal, line by line.

Owns the connection and the printing. What a line means is `terminal_chat`.
"""

import logging
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from mew_protocol.envelope import Envelope
from mew_protocol.kinds import CHAT, SYSTEM_WELCOME
from mew_spaces.config.loading import SpaceConfig

from mew_agent.cli.app import terminal
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.line_io import lines_of_stdin, read_lines
from mew_agent.cli.app.locate import space_config_path, space_folder
from mew_agent.cli.app.options import ConnectionOptions, PlainOption, option, with_option_groups
from mew_agent.cli.app.signals import run_until_terminated
from mew_agent.cli.board import words
from mew_agent.cli.chat.slash import InvalidLine, TypedEnvelope
from mew_agent.cli.chat.terminal_chat import LeaveChat, PrintText, TerminalChat, figures_of
from mew_agent.cli.remote.session import Identity, configuration_at, find_identity
from mew_agent.errors import MewAgentError
from mew_agent.participant.gaps import HistoryGap
from mew_agent.participant.participant import Participant

TypedLines = AbstractAsyncContextManager[MemoryObjectReceiveStream[str]]
"""A source of typed lines."""

_GOODBYE_SECONDS: Final = 3.0


@with_option_groups
def connect(
    connection: ConnectionOptions,
    *,
    config: Annotated[
        Path | None, option("--config, -c FILE", "Path of the space's space.yaml (default: found in the folder).")
    ] = None,
    plain: PlainOption = False,
) -> int:
    """Join the running space from this terminal.

    At a terminal it opens the full-screen application, where F1 shows the keys. Type /help for the commands.
    """
    if config is not None and connection.folder is None:
        connection = replace(connection, folder=space_folder(space_config_path(config, None)))
    return join_space(connection, plain=plain)


def join_space(connection: ConnectionOptions, config: SpaceConfig | None = None, *, plain: bool = False) -> int:
    """Chat until `/exit` or the end of the input. Returns the exit code. `config` saves reading space.yaml again.

    At a terminal that can, it is the full-screen application, unless `plain`.
    """
    who = find_identity(connection)
    targets = default_targets(config or configuration_at(who.run_path), who.participant)
    if not plain and terminal.is_full_screen():
        from mew_agent.cli.tui.app import open_space

        return open_space(who, targets)
    run_until_terminated(lambda: chat_by_lines(who, targets, read_lines(lines_of_stdin())))
    return ExitCode.DONE


async def chat_by_lines(who: Identity, targets: tuple[str, ...], lines: TypedLines) -> None:
    """Send what is typed, and print what is received."""
    me = Participant(who.ws_url, space=who.space, id=who.participant, token=who.token)
    chat = TerminalChat(who.participant, targets)
    outages = _OutagePrinter()

    @me.on()
    async def show(envelope: Envelope) -> None:
        if envelope.kind == SYSTEM_WELCOME:
            outages.print_end()
        line = chat.receive(envelope)
        if line is not None:
            terminal.print_line(line)

    @me.on(HistoryGap)
    async def show_gap(_: HistoryGap) -> None:
        terminal.print_line("* some messages were missed and are no longer available")

    with outages.watching():
        await _run(me, chat, lines)


async def _run(me: Participant, chat: TerminalChat, lines: TypedLines) -> None:
    async with me, lines as typed, anyio.create_task_group() as tasks:
        others = ", ".join(sorted(me.peers)) or "no one else"
        terminal.print_line(f"you are {me.id} in '{me.space}'; here: {others}. Type /help for commands")

        async def handle_typed_lines() -> None:
            await _handle_lines(me, chat, typed)
            with anyio.move_on_after(_GOODBYE_SECONDS):
                await me.aclose()
            tasks.cancel_scope.cancel()

        tasks.start_soon(handle_typed_lines)
        await me.until_ended()
        tasks.cancel_scope.cancel()
    await me.run_forever()  # raises what ended the connection, unless we closed it


class _OutagePrinter(logging.Handler):
    """Prints the start and the end of an outage. The client logs each attempt to reconnect."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._is_lost = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Receive the client's log lines during the block."""
        logger = logging.getLogger("mew_agent.participant.client")
        before = logger.level
        logger.setLevel(logging.INFO)
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.setLevel(before)

    def emit(self, record: logging.LogRecord) -> None:
        """Print the first attempt to reconnect."""
        if not self._is_lost:
            terminal.print_line("* connection lost; reconnecting. What you type is sent afterwards")
        self._is_lost = True

    def print_end(self) -> None:
        """Print that the connection is back, if it was lost."""
        if self._is_lost:
            terminal.print_line("* reconnected")
        self._is_lost = False


async def _handle_lines(me: Participant, chat: TerminalChat, typed: MemoryObjectReceiveStream[str]) -> None:
    async for line in typed:
        try:
            if line.strip() == "/who":
                terminal.print_line(_members(me))
                continue
            for action in chat.parse_line(line, tuple(me.peers)):
                match action:
                    case TypedEnvelope(kind, payload, to, correlation_id, context):
                        await me.send(kind, payload, to=to, correlation_id=correlation_id, context=context)
                    case PrintText(text):
                        terminal.print_line(text)
                    case LeaveChat():
                        return
        except (InvalidLine, MewAgentError) as error:
            terminal.print_line(f"* {error}")


def _members(me: Participant) -> str:
    lines = [f"  {me.id} (you)"]
    for name in sorted(me.peers):
        context = me.peers[name].context
        status = {"messages_in_context": context.messages, "tokens": context.tokens, "context": context.report}
        lines.append(f"  {words.clean(name)}{figures_of({**status, 'max_tokens': context.max_tokens})}")
    return "\n".join(lines)


def default_targets(config: SpaceConfig | None, participant: str) -> tuple[str, ...]:
    """The participants that this participant's plain text goes to, by space.yaml."""
    if config is None:
        return ()
    own = config.participants.get(participant)
    return (own.default_to.get(CHAT) if own else None) or config.defaults.routing.default_to.get(CHAT, ())
