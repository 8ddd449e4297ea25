"""The board as a model reads it, and the compactions it can request."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mew_board.words import report_line
from mew_protocol.context_report import ContextReport
from mew_protocol.payloads.participant import BoardEntry, Compact, CompactDone, Status
from mew_protocol.status_word import StatusWord
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import serve_gateway

from mew_agent.model.interface import ToolCall
from mew_agent.participant.compaction_driver import Begun, Requester
from mew_agent.participant.external_context import ExternalContext
from mew_agent.participant.participant import Participant
from mew_agent.participant.peers import PeerContext
from mew_agent.parts.space_tools.board_tools import BoardTools, headroom_tokens
from mew_agent.tools.sources import CallContext
from tests.support.waiting import PATIENCE_SECONDS

SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}]}
  watcher: {command: mew, capabilities: [{kind: participant/request-status}]}
  boss: {command: mew, capabilities: [{kind: participant/compact, to: [coder, mute]}]}
  mute: {command: mew, capabilities: [{kind: chat}]}
  coder: {command: mew, capabilities: [{kind: participant/status}, {kind: participant/compact-done}]}
"""
CONTEXT = CallContext("chat-1")


class FixedConversation(ExternalContext):
    """A conversation with given figures."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: int | None = 98_412
        self.level, self.severity = "healthy", 0
        self.done = CompactDone(status="compacted", freed_tokens=71_366, tokens_after=27_046, basis="projected")

    def status(self, word: StatusWord | None = None) -> Status:
        known = (
            {"basis": "reported"} if self.tokens is not None else {"basis": "unknown", "reason": "usage_unavailable"}
        )
        report = {
            "level": self.level,
            "severity": self.severity,
            "policy": "mew",
            "compact_at_tokens": 115_200,
            **known,
        }
        rest = {"max_tokens_basis": "configured", "measure": "total", "stale_messages": 0, "revision": 0}
        figures: dict[str, Any] = {"max_tokens": 128_000, "messages_in_context": 3, "status": str(word or "active")}
        if self.tokens is not None:
            figures["tokens"] = self.tokens
        return Status.model_validate({**figures, "context": {**report, **rest, "compactions": 0}})

    async def compact(self, request: Compact, requester: Requester | None = None) -> CompactDone:
        async def work(begun: Begun) -> CompactDone:
            await begun()
            return self.done

        return await self.compacting.run("requested", request.reason, work, requester)


Call = Callable[..., Any]


@asynccontextmanager
async def scene(
    name: str, fourth: str | None = None
) -> AsyncIterator[tuple[BoardTools, Call, Participant, FixedConversation]]:
    """The tools of a participant, `call(tool, arguments)`, and a `coder` with fixed figures."""
    async with serve_gateway(parse_space(SPACE)) as gateway:

        def person(who: str, **options: Any) -> Participant:
            return Participant(gateway.ws_url, space="demo", id=who, token=gateway.token_of(who), **options)

        made = FixedConversation()
        last = person(fourth) if fourth is not None else nullcontext()
        async with person(name) as me, person("ada"), last, person("coder", conversation=made) as coder:
            tools = BoardTools(me)

            async def call(tool: str, arguments: str = "{}") -> str:
                return (await tools.run(ToolCall("1", tool, arguments), CONTEXT)).prompt_text

            await coder.control.announce()
            with anyio.fail_after(PATIENCE_SECONDS):
                while "coder" not in me.peers or me.peers["coder"].context.tokens is None:
                    await anyio.sleep(0.005)
            yield tools, call, coder, made


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("mute", []),
        ("watcher", ["context_board", "wait_for_headroom"]),
        ("boss", ["context_board", "request_compaction", "wait_for_headroom"]),
    ],
)
async def test_the_offered_board_tools_depend_on_capabilities(name: str, offered: list[str]) -> None:
    async with scene(name) as (tools, *_):
        assert [spec.name for spec in tools.specs()] == offered


async def test_the_board_has_a_line_for_each_participant_with_a_context() -> None:
    async with scene("boss") as (_, call, *_rest):
        board = await call("context_board")
        assert board.splitlines() == [
            "boss (you): ? of ? tokens (unknown: nothing reported)",
            "coder: 98,412 of 128,000 tokens (reported), healthy, compacts at 115,200",
            "no context of their own: ada",
        ]


async def test_a_requested_compaction_returns_its_outcome() -> None:
    async with scene("boss") as (_, call, _coder, made):
        requested = '{"peer": "coder", "reason": "long review ahead"}'
        outcome = "coder: freed ~71,366 tokens; now ~27,046 of ? (projected; exact after its next call)"
        assert await call("request_compaction", requested) == outcome
        made.done = CompactDone(status="skipped", skipped=True, reason="already_below_target")
        assert await call("request_compaction", requested) == "coder: skipped, already below the target"
        made.done = CompactDone(status="skipped", skipped=True, reason="the model is down")
        assert await call("request_compaction", requested) == "coder: skipped, the model is down"


async def test_an_unknown_peer_and_a_missing_capability_are_errors() -> None:
    async with scene("boss") as (_, call, *_rest):
        assert "no participant 'ghost' in this space (participants: ada, coder)" in await call(
            "request_compaction", '{"peer": "ghost"}'
        )
        refused = await call("request_compaction", '{"peer": "ada"}')
        assert refused.startswith("Error: 'boss' has no capability")


async def test_a_peer_that_cannot_answer_is_not_waited_for() -> None:
    async with scene("boss", "mute") as (_, call, *_rest):
        with anyio.fail_after(PATIENCE_SECONDS):
            reported = await call("request_compaction", '{"peer": "mute"}')
        assert reported.startswith("Error: 'mute' reports no context of its own")


async def test_waiting_ends_when_room_appears() -> None:
    async with scene("watcher") as (_, call, coder, made):
        assert "has room for 16,788 tokens" in await call("wait_for_headroom", '{"peer": "coder", "tokens": 16788}')
        said: list[str] = []

        async def wait() -> None:
            said.append(await call("wait_for_headroom", '{"peer": "coder", "tokens": 50000}'))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await coder.control.announce()
            made.tokens = 27_046
            await coder.control.announce(StatusWord("compacted"))
        (reported,) = said
        assert reported.startswith("coder has room for 88,154 tokens: 27,046 of 128,000 tokens (reported), healthy")


async def test_waiting_without_success_reports_the_room() -> None:
    async with scene("watcher") as (_, call, coder, made):
        requested = '{"peer": "coder", "tokens": 50000, "timeout_seconds": 0.01}'
        assert "waited 0.01 seconds for 'coder': it has room for only 16,788 tokens" in await call(
            "wait_for_headroom", requested
        )
        made.tokens = None
        await coder.control.announce()
        assert "its room is unknown" in await call("wait_for_headroom", requested.replace("50000", "200000"))


async def test_waiting_ends_when_the_peer_leaves() -> None:
    async with scene("watcher") as (_, call, coder, _made):
        said: list[str] = []

        async def wait() -> None:
            said.append(await call("wait_for_headroom", '{"peer": "coder", "tokens": 50000}'))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.lowlevel.checkpoint()
            await coder.aclose()
        assert "no participant 'coder' in this space" in said[0]


def test_headroom_ends_at_the_compaction_threshold_or_the_window() -> None:
    assert headroom_tokens(PeerContext()) is None
    assert headroom_tokens(PeerContext(tokens=100)) is None
    assert headroom_tokens(PeerContext(tokens=100, max_tokens=1_000)) == 900
    assert headroom_tokens(PeerContext(tokens=2_000, max_tokens=1_000)) == 0
    assert headroom_tokens(PeerContext.from_status(FixedConversation().status(), "")) == 115_200 - 98_412


def line_of(status: Status) -> str:
    return report_line(BoardEntry(id="coder", connected=True, status=status), datetime.now(UTC))


def test_an_unknown_size_is_called_unknown() -> None:
    made = FixedConversation()
    made.tokens = None
    assert line_of(made.status(StatusWord("paused"))) == (
        "? of 128,000 tokens (unknown: no usage reported), healthy, compacts at 115,200, paused"
    )
    status = Status(messages_in_context=1, tokens=1_200, max_tokens=20_000)
    assert line_of(status) == "~1,200 of ~20,000 tokens (estimate)"
    reported = status.model_copy(update={"context": ContextReport(basis="agent_reported")})
    assert line_of(reported) == "~1,200 of 20,000 tokens (agent reported)"
