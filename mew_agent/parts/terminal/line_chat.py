"""A conversation at a terminal, line by line.

Owns the connection and the printing. `terminal_chat` interprets lines.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from mew_board.quoting import clean, indented
from mew_protocol.envelope import Envelope
from mew_protocol.kinds import SYSTEM_WELCOME

from mew_agent.cli.app import terminal
from mew_agent.cli.remote.identity import Identity
from mew_agent.errors import MewAgentError, listed
from mew_agent.participant.gaps import ConnectionLost, HistoryGap
from mew_agent.participant.participant import Participant
from mew_agent.parts.terminal.slash import InvalidLine
from mew_agent.parts.terminal.terminal_chat import TerminalChat, figures_of

TypedLines = AbstractAsyncContextManager[MemoryObjectReceiveStream[str]]
"""A source of typed lines."""

_GOODBYE_SECONDS: Final = 3.0


async def chat_by_lines(who: Identity, targets: tuple[str, ...], lines: TypedLines) -> None:
    """Send typed lines, and print received envelopes."""
    me = Participant(who.ws_url, space=who.space, id=who.participant, token=who.token, reports_context=False)
    chat = TerminalChat(who.participant, me.events.proposals.is_same, me.unfinished, targets)
    is_lost = False

    @me.on()
    async def show(envelope: Envelope) -> None:
        nonlocal is_lost
        if envelope.kind == SYSTEM_WELCOME and is_lost:
            is_lost = False
            terminal.print_line("* reconnected")
        line = chat.receive(envelope)
        if line is not None:
            terminal.print_line(indented(line))

    @me.on(ConnectionLost)
    async def show_outage(event: ConnectionLost) -> None:
        nonlocal is_lost
        is_lost = True
        terminal.print_line(f"* connection lost; reconnecting ({event.cause}). What you type is sent afterwards")

    @me.on(HistoryGap)
    async def show_gap(_: HistoryGap) -> None:
        terminal.print_line("* some messages were missed and are no longer available")

    async with me, lines as typed, anyio.create_task_group() as tasks:
        others = listed(sorted(me.peers)) if me.peers else "no one else"
        terminal.print_line(f"you are {me.id} in '{me.space}'; here: {others}. Type /help for commands")

        async def handle_typed_lines() -> None:
            async for line in typed:
                if await enter_line(me, chat, line, terminal.print_line):
                    break
            with anyio.move_on_after(_GOODBYE_SECONDS):
                await me.aclose()
            tasks.cancel_scope.cancel()

        tasks.start_soon(handle_typed_lines)
        await me.until_ended()
        tasks.cancel_scope.cancel()
    await me.run_forever()  # raises the error that ended the connection, unless we closed it


async def enter_line(me: Participant, chat: TerminalChat, line: str, show: Callable[[str], None]) -> bool:
    """Carry out a typed line, and show its immediate outcome. Returns whether the person wants to leave."""
    command = line.strip().partition(" ")[0]
    if command in ("/exit", "/quit"):
        return True
    try:
        if command == "/who":
            show(_members(me))
            return False
        for typed in chat.parse_line(line, tuple(sorted(me.peers))):
            if isinstance(typed, str):
                show(typed)
            else:
                about = typed.correlation_id
                await me.send(typed.kind, typed.payload, to=typed.to, correlation_id=about, context=typed.context)
    except (InvalidLine, MewAgentError) as error:
        show(f"* {error}")
    return False


def _members(me: Participant) -> str:
    lines = [f"  {me.id} (you)"]
    lines += [f"  {clean(name)}{figures_of(me.peers[name].context.as_status())}" for name in sorted(me.peers)]
    return "\n".join(lines)
