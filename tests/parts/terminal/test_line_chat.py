"""`mew connect`: typed lines reach the space, and received envelopes reach the terminal."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent.cli.remote.identity import Identity
from mew_agent.errors import Unauthorized
from mew_agent.parts.terminal.connect import default_targets
from mew_agent.parts.terminal.line_chat import chat_by_lines
from tests.support.cli import mew
from tests.support.command_space import SPACE
from tests.support.gateway_client import joined
from tests.support.waiting import PATIENCE_SECONDS


def identity(gateway: RunningGateway, token: str | None = None) -> Identity:
    return Identity(gateway.url, "review", "ada", token or gateway.token_of("ada"))


class Terminal:
    """A person who types, and what they have seen so far."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.seen = ""
        self._send: MemoryObjectSendStream[str]
        self._send, self._receive = anyio.create_memory_object_stream[str](100)

    async def type(self, line: str) -> None:
        await self._send.send(line)

    def close(self) -> None:
        """The end of what is typed."""
        self._send.close()

    def release(self) -> None:
        self._send.close()
        self._receive.close()

    @asynccontextmanager
    async def lines(self) -> AsyncIterator[MemoryObjectReceiveStream[str]]:
        with self._receive:
            yield self._receive

    async def shows(self, text: str) -> None:
        with anyio.fail_after(PATIENCE_SECONDS):
            while text not in self.seen:
                await anyio.sleep(0.005)
                self.seen += self._capsys.readouterr().out


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    typing = Terminal(capsys)
    yield typing
    typing.release()


async def test_person_chats_calls_approves_and_leaves(gateway: RunningGateway, terminal: Terminal) -> None:
    async with joined(gateway, "coder") as coder, anyio.create_task_group() as tasks:
        tasks.start_soon(chat_by_lines, identity(gateway), ("coder",), terminal.lines())
        await terminal.shows("you are ada in 'review'; here: coder.")
        await terminal.type("hello")
        chat = await coder.until("chat")
        assert (chat["payload"], chat["to"], chat["from"]) == ({"text": "hello"}, ["coder"], "ada")
        await coder.chat("good morning \x1b[2J")
        await terminal.shows("coder: good morning [2J")
        await coder.chat("Hello.\nada: I approve.\r* coder proposes: read\u2028  /approve 1 or /reject 1")
        await terminal.shows("coder: Hello.\n  ada: I approve.\n  * coder proposes: read\n    /approve 1")
        await terminal.type("/compact coder 100")
        assert (await coder.until("participant/compact"))["payload"] == {"target_tokens": 100}
        await terminal.type("/approve")
        await terminal.shows("* no proposal is open")
        await terminal.type("/who")
        await terminal.shows("  ada (you)\n  coder")
        async with joined(gateway, "guest"):
            await terminal.shows("* guest joined")
        await terminal.type("/exit")
        with anyio.fail_after(PATIENCE_SECONDS):
            while (await coder.until("system/presence"))["payload"]["participant"]["id"] != "ada":
                pass


async def test_end_of_input_ends_the_session(gateway: RunningGateway, terminal: Terminal) -> None:
    terminal.close()
    with anyio.fail_after(PATIENCE_SECONDS):
        await chat_by_lines(identity(gateway), (), terminal.lines())


async def test_outage_and_its_end_are_printed_once(terminal: Terminal) -> None:
    config = parse_space(SPACE)
    async with anyio.create_task_group() as tasks:
        async with serve_gateway(config) as first:
            tasks.start_soon(chat_by_lines, identity(first), (), terminal.lines())
            await terminal.shows("you are ada in 'review'")
        await terminal.shows("* connection lost; reconnecting")
        async with (
            serve_gateway(config, port=first.port, tokens=first.tokens) as second,
            joined(second, "coder") as one,
        ):
            await terminal.shows("* reconnected")
            await terminal.type("anybody here?")
            assert (await one.until("chat"))["payload"] == {"text": "anybody here?"}
            terminal.close()
    assert terminal.seen.count("* connection lost") == terminal.seen.count("* reconnected") == 1


async def test_refused_token_raises_unauthorized(gateway: RunningGateway, terminal: Terminal) -> None:
    with pytest.raises(Unauthorized):
        await chat_by_lines(identity(gateway, "wrong"), (), terminal.lines())


@pytest.mark.parametrize(
    ("section", "targets"),
    [
        ("participants: {ada: {default_to: {chat: [coder]}}}", ("coder",)),
        ("participants: {ada: {}}\ndefaults: {routing: {default_to: {chat: [bob]}}}", ("bob",)),
        ("participants: {ada: {}}", ()),
    ],
)
def test_plain_text_goes_to_the_default_targets(section: str, targets: tuple[str, ...]) -> None:
    assert default_targets(parse_space(f"space: {{id: review}}\n{section}\n"), "ada") == targets


def test_plain_text_goes_to_all_without_a_space_file() -> None:
    assert default_targets(None, "ada") == ()


async def test_missing_space_says_how_to_start_one() -> None:
    outcome = await mew("connect")
    assert "`mew init` creates one" in outcome.err
    assert outcome.code == 2
