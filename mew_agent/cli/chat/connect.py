"""`mew space connect`: take part in a space from a terminal, line by line.

Owns the connection and the printing. What lines mean is `talk`.
"""

import logging
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from mew_protocol.envelope import Envelope
from mew_protocol.kinds import CHAT, SYSTEM_WELCOME

from mew_agent.cli.app import terminal
from mew_agent.cli.app.line_io import lines_of_stdin, reading
from mew_agent.cli.app.options import Flags
from mew_agent.cli.app.signals import run_until_terminated
from mew_agent.cli.board import words as words
from mew_agent.cli.chat.slash import Mistake, Send
from mew_agent.cli.chat.talk import Action, Leave, Show, Talk, figures_of
from mew_agent.cli.remote.identity import Identity, config_of, find_identity
from mew_agent.errors import MewAgentError
from mew_agent.participant.participant import Participant

Typed = AbstractAsyncContextManager[MemoryObjectReceiveStream[str]]
"""Where typed lines come from."""

_GOODBYE_SECONDS: Final = 3.0


def connect(flags: Flags) -> int:
    """Talk until `/exit` or the end of the input. Returns the exit code."""
    who = find_identity(flags)
    run_until_terminated(lambda: converse(who, default_targets(who), reading(lines_of_stdin())))
    return terminal.DONE


async def converse(who: Identity, targets: tuple[str, ...], lines: Typed) -> None:
    """Carry typed lines into the space and what is heard onto the terminal."""
    me = Participant(who.ws_url, space=who.space, id=who.participant, token=who.token)
    talk = Talk(who.participant, targets)
    connection = _Connection()

    @me.on()
    async def show(envelope: Envelope) -> None:
        if envelope.kind == SYSTEM_WELCOME:
            connection.is_back()
        line = talk.hear(envelope)
        if line is not None:
            terminal.say(line)

    with connection.watched():
        await _take_part(me, talk, lines)


async def _take_part(me: Participant, talk: Talk, lines: Typed) -> None:
    async with me, lines as typed, anyio.create_task_group() as tasks:
        others = ", ".join(sorted(me.peers)) or "nobody else"
        terminal.say(f"you are {me.id} in '{me.space}'; here: {others}. /help tells what can be typed")

        async def type_on() -> None:
            await _obey_lines(me, talk, typed)
            with anyio.move_on_after(_GOODBYE_SECONDS):
                await me.aclose()
            tasks.cancel_scope.cancel()

        tasks.start_soon(type_on)
        await me.until_ended()
        tasks.cancel_scope.cancel()
    await me.run_forever()  # raises what ended it, if it was not us


class _Connection(logging.Handler):
    """Tells of an outage once, and of its end. The client logs each of its tries to come back."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._is_lost = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Hear of the client's tries for the length of the block."""
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
        """A try to come back."""
        if not self._is_lost:
            terminal.say("* the gateway is gone; trying to come back, and what you type waits")
        self._is_lost = True

    def is_back(self) -> None:
        """We were welcomed."""
        if self._is_lost:
            terminal.say("* back in the space")
        self._is_lost = False


async def _obey_lines(me: Participant, talk: Talk, typed: MemoryObjectReceiveStream[str]) -> None:
    async for line in typed:
        try:
            if line.strip() == "/who":
                terminal.say(_members(me))
                continue
            for action in talk.typed(line):
                if isinstance(action, Leave):
                    return
                await _perform(me, action)
        except (Mistake, MewAgentError) as error:
            terminal.say(f"* {error}")


async def _perform(me: Participant, action: Action) -> None:
    match action:
        case Send():
            await me.send(
                action.kind, action.payload, to=action.to, correlation_id=action.correlation_id, context=action.context
            )
        case Show():
            terminal.say(action.text)
        case Leave():
            return


def _members(me: Participant) -> str:
    lines = [f"  {me.id} (you)"]
    for name in sorted(me.peers):
        context = me.peers[name].context
        report = {"messages_in_context": context.messages or 0, "tokens": context.tokens, "context": context.report}
        known = context.messages is not None
        figures = figures_of({**report, "max_tokens": context.max_tokens}) if known else ""
        lines.append(f"  {words.clean(name)}{figures}")
    return "\n".join(lines)


def default_targets(who: Identity) -> tuple[str, ...]:
    """Whom space.yaml says that this participant's plain text goes to."""
    config = config_of(who)
    if config is None:
        return ()
    own = config.participants.get(who.participant)
    return (own.default_to.get(CHAT) if own else None) or config.defaults.routing.default_to.get(CHAT, ())
