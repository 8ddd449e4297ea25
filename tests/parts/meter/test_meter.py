"""A metered agent in a real space: its figures on the board, its controls, and `mew meter`."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from openai import AsyncOpenAI

from mew_agent import Participant, PeerContext
from mew_agent.parts.meter.main_line import MeteredCall
from mew_agent.parts.meter.meter import run_meter
from mew_agent.parts.rehearsal import RehearsalServer, ScriptedReply, ScriptedToolCall, serve_rehearsal
from tests.support.waiting import PATIENCE_SECONDS, until

Joined = Callable[..., Participant]
KEY = "sk-very-secret-7c1f"
TOOLS: Any = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}]
INCLUDE: Any = {"include_usage": True}


@pytest.fixture
async def metered(joined: Joined) -> AsyncIterator[tuple[RehearsalServer, Participant, str, list[MeteredCall]]]:
    """The model server, ada, the address of the meter of `coder`, and the calls that it saw."""
    calls: list[MeteredCall] = []
    async with serve_rehearsal() as server, joined("ada") as ada, anyio.create_task_group() as tasks:

        @asynccontextmanager
        async def running() -> AsyncIterator[str]:
            urls: list[str] = []

            async def run() -> None:
                await run_meter(joined("coder"), server.base_url, window=8192, on_call=calls.append, ready=urls.append)

            tasks.start_soon(run)
            await until(lambda: urls)
            yield urls[0]

        async with running() as url:
            yield server, ada, url, calls
        tasks.cancel_scope.cancel()


async def ask(client: AsyncOpenAI, messages: list[Any], **options: Any) -> tuple[Any, Any]:
    """Stream one chat completion. Returns its usage and its message."""
    usage, text, calls = None, "", []
    stream = await client.chat.completions.create(model="rehearsal", messages=messages, stream=True, **options)
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            calls += [call.id for call in choice.delta.tool_calls or () if call.id]
    message: dict[str, Any] = {"role": "assistant", "content": text}
    function = {"name": "read", "arguments": "{}"}
    if calls:
        message["tool_calls"] = [{"id": name, "type": "function", "function": function} for name in calls]
    return usage, message


async def test_board_shows_the_integer_that_the_agent_received(
    metered: tuple[RehearsalServer, Participant, str, list[MeteredCall]], caplog: pytest.LogCaptureFixture
) -> None:
    server, ada, url, calls = metered
    caplog.set_level(logging.DEBUG)
    server.change(script=(ScriptedReply(tool_calls=(ScriptedToolCall(name="read"),)),))

    def coder() -> PeerContext:
        return ada.peers["coder"].context

    history: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Read the file."}]
    async with AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        usage, message = await ask(client, history, tools=TOOLS, stream_options=INCLUDE)
        await until(lambda: coder().tokens == usage.total_tokens)
        assert str(coder().basis) == "provisional"
        title, _ = await ask(client, [{"role": "user", "content": "A title for this?"}], stream_options=INCLUDE)
        history += [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "42"}]
        second, message = await ask(client, history, tools=TOOLS, stream_options=INCLUDE)
        await until(lambda: coder().tokens == second.total_tokens)
        assert coder().max_tokens == 8192
        history += [message, {"role": "user", "content": "And now?"}]
        server.change(status=503)
        with pytest.raises(Exception, match="503"):
            await ask(client, history, tools=TOOLS, stream_options=INCLUDE)
        await until(lambda: coder().basis == "reported")
        assert coder().tokens == second.total_tokens
        server.change(status=None)
        await ask(client, history, tools=TOOLS)  # it did not ask for usage
        await until(lambda: coder().basis == "unknown")
    spent = sum(one.total_tokens for one in (usage, title, second))
    report = coder().report
    assert report is not None
    assert report.spending is not None
    assert (report.spending.spent_tokens, report.spending.calls, report.spending.unreported_calls) == (spent, 3, 2)
    assert (await ada.compact("coder", timeout_seconds=PATIENCE_SECONDS)).reason == "not_owner"
    assert (await ada.undo("coder", timeout_seconds=PATIENCE_SECONDS)).reason == "not_owner"
    assert (await ada.ask_agent("coder", "Hello?")).text.startswith("I only measure an agent")
    seen = [(call.verdict, call.usage and call.usage.total_tokens) for call in calls]
    assert seen[1] == ("aside", title.total_tokens)
    assert [verdict for verdict, _ in seen] == ["main", "aside", "main", "failed", "provisional"]
    assert server.requests[-1].authorization == f"Bearer {KEY}"
    # The client library and HTTP libraries have loggers of their own; ours name no key and no text.
    ours = " ".join(record.getMessage() for record in caplog.records if record.name.startswith("mew_agent"))
    assert KEY not in ours
    assert "Read the file" not in ours


async def test_board_shows_no_figure_that_cannot_be_true(
    metered: tuple[RehearsalServer, Participant, str, list[MeteredCall]],
) -> None:
    server, ada, url, calls = metered
    server.change(fixed_usage=((900, 7, 907), (10**12, 7, 10**12 + 7), (9, 9_000, 9_009)))
    history: list[Any] = [{"role": "user", "content": "How long is the Elbe?"}]
    async with AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        await ask(client, history, tools=TOOLS, stream_options=INCLUDE)
        await until(lambda: ada.peers["coder"].context.tokens == 907)
        for _ in range(2):
            await ask(client, history, tools=TOOLS, stream_options=INCLUDE)

    def shown() -> tuple[Any, ...]:
        report = ada.peers["coder"].context.report
        if report is None or report.spending is None:
            return ()
        return report.reason, report.spending.spent_tokens, report.spending.unreported_calls

    await until(lambda: shown() == ("usage_implausible", 907, 2))
    assert [call.reply and bool(call.reply.problem) for call in calls] == [False, True, True]


async def test_a_restarted_meter_says_so_with_its_window(joined: Joined) -> None:
    async with serve_rehearsal() as server, joined("ada") as ada:

        async def run(window: int, ready: Callable[[str], None]) -> None:
            await run_meter(joined("coder"), server.base_url, window=window, ready=ready)

        def coder() -> PeerContext:
            return ada.peers["coder"].context

        async with anyio.create_task_group() as first:
            urls: list[str] = []
            first.start_soon(run, 8192, urls.append)
            await until(lambda: "coder" in ada.peers and coder().report)
            assert str(coder()) == "? of 8,192 tokens (unknown)"
            async with AsyncOpenAI(base_url=urls[0], api_key=KEY, max_retries=0) as client:
                hello = [{"role": "user", "content": "Hi"}]
                usage, _ = await ask(client, hello, tools=TOOLS, stream_options=INCLUDE)
            await until(lambda: coder().tokens == usage.total_tokens)
            first.cancel_scope.cancel()
        await until(lambda: "coder" not in ada.peers)
        async with anyio.create_task_group() as second:
            second.start_soon(run, 4096, urls.append)
            await until(lambda: "coder" in ada.peers and coder().max_tokens == 4096)
            report = coder().report
            assert report is not None
            assert (coder().tokens, report.reason, coder().outdated) == (None, "restarted", None)
            assert report.last_reported is not None
            assert report.last_reported.tokens == usage.total_tokens
            second.cancel_scope.cancel()
