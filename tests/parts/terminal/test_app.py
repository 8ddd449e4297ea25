"""The terminal application against a real gateway and a real agent on the rehearsal model, driven as a person does."""

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest
from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.join import join_frame
from mew_spaces.config.loading import SpaceConfig
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway
from textual.events import Paste
from websockets.asyncio.client import connect

from mew_agent import Participant
from mew_agent.cli.remote.identity import Identity
from mew_agent.errors import Unauthorized
from mew_agent.participant import reasoning_stream
from mew_agent.parts.terminal.app import SpaceApp
from mew_agent.parts.terminal.widgets import AttentionList, BoardList, Composer, FeedView
from tests.support.agents import StartAgent
from tests.support.terminal_app import Screen, screen_text
from tests.support.waiting import PATIENCE_SECONDS, until

USAGE = ((1_000, 40, 1_040), (2_000, 40, 2_040), (3_000, 40, 3_040), (6_000, 40, 6_040), (6_400, 60, 6_460))


def write_file(path: str) -> str:
    """Write a file."""
    return f"wrote {path}"


@pytest.fixture
async def gateway(space: SpaceConfig, tokens: TokenBook) -> AsyncIterator[RunningGateway]:
    async with serve_gateway(space, tokens=tokens) as running:
        yield running


@asynccontextmanager
async def console(
    gateway: RunningGateway, *, size: tuple[int, int] = (130, 40), **options: Any
) -> AsyncIterator[Screen]:
    who = Identity(gateway.ws_url, "demo", "ada", gateway.token_of("ada"))
    app = SpaceApp(who, **options)
    async with app.run_test(size=size) as pilot:
        screen = Screen(pilot)
        await screen.shows("you are ada")
        yield screen


async def test_a_person_chats_acts_and_sees_the_figures_of_the_status(
    start_agent: StartAgent, gateway: RunningGateway, text: Callable[[int], str]
) -> None:
    async with start_agent(fixed_usage=USAGE) as s, console(gateway) as screen:
        for _ in range(3):
            await s.ask(text(100))
        await screen.pilot.press(*"@co", "tab")
        assert screen.app.query_one(Composer).value == "@coder "
        await screen.pilot.press(*"<b>hi</b>", "enter")
        await until(lambda: len(s.reported) == 4)
        tokens = s.reported[3]["tokens"]
        await screen.shows(f"{tokens:,} of 8,192 reported", f"{tokens:,} of 8,192 tokens", "74%", "<b>hi</b>")
        await screen.shows("coder to ada", "▶ coder worked on it", "compacts at     7,373", "Composition")
        await screen.type("@coder second")
        await until(lambda: len(s.reported) == 5)
        await screen.shows("6,460 of 8,192 reported")
        await screen.pilot.press("up")
        assert screen.app.query_one(Composer).value == "@coder second"
        await screen.pilot.press("escape", "f2", "c")
        await screen.shows("ada asked coder to compact", "coder: freed ", "last compaction")
        await screen.pilot.press("p")
        await screen.shows("coder: paused", "projected · paus")
        await screen.pilot.press("p")
        await screen.shows("ada asked coder to resume")
        await screen.type("@nobody hi")
        await screen.shows("no participant 'nobody' is here")
        await screen.type("/nonsense")
        await screen.shows("unknown command /nonsense")
        await screen.type("/exit")
        with anyio.fail_after(30):
            await screen.pilot.pause()
        assert screen.app.failure is None


async def test_a_long_proposal_is_approved_after_its_end_is_shown(gateway: RunningGateway) -> None:
    bob = Participant(gateway.ws_url, space="demo", id="bob", token=gateway.token_of("bob"))
    bob.tool(write_file)
    async with bob, console(gateway) as screen, anyio.create_task_group() as tasks:
        path = "\n".join(["first", *(f"line {number}" for number in range(60)), "last"])
        answered: list[object] = []

        async def propose() -> None:
            answered.append(await bob.propose("bob", "tools/call", {"name": "write_file", "arguments": {"path": path}}))

        tasks.start_soon(propose)
        await screen.shows("! bob waits for approval of write_file", "1 needs you")
        await screen.pilot.press("f3", "a")
        await screen.shows("bob proposes write_file on bob:", "first")
        await screen.pilot.press("y")
        await screen.shows("Y approve   Esc back", "last")
        assert answered == []
        await screen.pilot.press("y")
        await until(lambda: len(answered) == 1)


async def test_a_proposal_is_on_top_until_it_is_decided(gateway: RunningGateway) -> None:
    bob = Participant(gateway.ws_url, space="demo", id="bob", token=gateway.token_of("bob"))

    bob.tool(write_file)
    outcomes: list[object] = []
    grants: list[Envelope] = []
    bob.on("capability/grant")(grants.append)
    async with bob, console(gateway) as screen, anyio.create_task_group() as tasks:

        async def propose(path: str) -> None:
            try:
                outcomes.append(
                    await bob.propose("bob", "tools/call", {"name": "write_file", "arguments": {"path": path}})
                )
            except Exception as error:
                outcomes.append(error)

        tasks.start_soon(propose, "a.txt")
        await screen.shows("! bob waits for approval of write_file", "a.txt", "1 needs you")
        await screen.pilot.press("f3", "a")
        await screen.shows("bob proposes write_file on bob:", "Y approve   Esc back")
        await screen.pilot.press("escape", "a")
        await screen.shows("Y approve   Esc back")
        assert outcomes == []
        await screen.pilot.press("y")
        await until(lambda: len(outcomes) == 1)
        assert outcomes[0] == {"content": [{"type": "text", "text": "wrote a.txt"}]}
        tasks.start_soon(propose, "b.txt")
        await screen.shows("b.txt", "1 needs you")
        await screen.pilot.press("f3", "r")
        assert screen.app.query_one(Composer).value == "/reject 2 "
        await screen.pilot.press(*"no", "enter")
        await until(lambda: len(outcomes) == 2)
        assert "no" in str(outcomes[1])
        await until(lambda: not screen.app.query_one(AttentionList).display)
        tasks.start_soon(propose, "c.txt")
        await screen.shows("c.txt", "1 needs you")
        await screen.pilot.press("f3", "w")
        await screen.pilot.pause()
        assert grants == [], "a call of its own tool is not allowed for good"
        tasks.cancel_scope.cancel()


async def test_a_tool_is_always_allowed_after_its_meaning_is_shown_and_until_it_ends(gateway: RunningGateway) -> None:
    bob = Participant(gateway.ws_url, space="demo", id="bob", token=gateway.token_of("bob"))
    writer = Participant(gateway.ws_url, space="demo", id="writer", token=gateway.token_of("writer"))
    writer.tool(write_file)
    outcomes: list[object] = []
    seen: list[Envelope] = []
    for kind in ("capability/grant", "capability/revoke", "mcp/request"):
        bob.on(kind)(seen.append)
    async with bob, writer, console(gateway) as screen, anyio.create_task_group() as tasks:

        async def propose() -> None:
            params = {"name": "write_file", "arguments": {"path": "c.txt"}}
            outcomes.append(await bob.propose("writer", "tools/call", params))

        tasks.start_soon(propose)
        await screen.shows("c.txt", "1 needs you")
        await screen.pilot.press("f3", "w")
        await screen.shows("bob may then call write_file on writer without asking", "Y always allow this tool")
        assert seen == []
        await screen.pilot.press("y")
        await until(lambda: len(outcomes) == 1)
        grant, approval = seen
        (pattern,) = grant.body["capabilities"]
        assert (pattern["to"], pattern["approve"]) == (["writer"], False)
        assert approval.body["proposal_digest"].startswith("sha256:")
        await screen.pilot.press("f2")
        screen.app.query_one(BoardList).choose("bob")
        await screen.shows("Always allowed", "bob may call write_file on writer")
        await screen.pilot.press("e")
        await until(lambda: len(seen) == 3)
        assert (seen[2].kind, seen[2].body["capabilities"]) == ("capability/revoke", [pattern])


async def test_sixty_agents_are_sorted_and_filtered_on_a_small_terminal(gateway: RunningGateway) -> None:
    async with console(gateway, size=(80, 24), start_on="board") as screen:
        view = screen.app.view
        assert view.board is not None
        entry = view.board.participants[0]
        for number in range(60):
            report = {"basis": "reported", "level": "healthy", "severity": 0, "max_tokens_basis": "configured"}
            status = {"messages_in_context": 1, "tokens": 100 * number, "max_tokens": 8_000, "context": report}
            if number == 7:
                status["status"] = "model_unreachable"
            added = type(entry).model_validate({"id": f"agent-{number}", "connected": True, "status": status})
            view.board = view.board.model_copy(update={"participants": (*view.board.participants, added)})
        view.on_change(())
        shown = (await screen.shows("agent-59", "cannot reach its model")).splitlines()
        rows = [line.split("│")[0].strip() for line in shown]
        first = rows.index("! agent-7       █░░░░░░░░░░░░   9%")
        assert [one.split()[0] for one in rows[first + 1 : first + 5]] == [f"agent-{at}" for at in (56, 57, 58, 59)]
        assert all(len(line) <= 81 for line in shown)
        await screen.pilot.press("slash", *"agent-1", "enter")
        await until(lambda: screen.app.query_one(BoardList).option_count == 11)
        assert screen.app.query_one(BoardList).has_focus


async def test_a_participant_is_highlighted_while_the_screen_closes(
    start_agent: StartAgent, gateway: RunningGateway
) -> None:
    async with start_agent(fixed_usage=USAGE), console(gateway, start_on="board") as screen:
        await screen.shows("coder")
        await screen.app.query_one("#details-pane").remove()  # widgets go one after another
        await screen.pilot.press("down", "up", "down")
        await screen.pilot.pause()
        assert screen.app.is_running
        assert screen.app.failure is None


async def test_a_narrow_terminal_shows_one_pane_at_a_time(start_agent: StartAgent, gateway: RunningGateway) -> None:
    async with start_agent(fixed_usage=USAGE), console(gateway, size=(50, 20)) as screen:
        await screen.shows("Message, @name")
        assert "no call yet" not in screen_text(screen.app)
        await screen.pilot.press("f2")
        await screen.shows("coder", "no call yet")
        await screen.pilot.press("enter")
        await screen.shows("policy")
        await screen.pilot.press("escape")
        await screen.shows("Message, @name")


async def test_text_streams_and_work_opens_to_its_calls(
    start_agent: StartAgent, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Drawing delays the agent, which is in the same event loop.
    monkeypatch.setattr(reasoning_stream, "OPEN_TIMEOUT_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(reasoning_stream, "FRAME_TIMEOUT_SECONDS", PATIENCE_SECONDS)
    asked, go_on = anyio.Event(), anyio.Event()

    async def look_up(word: str) -> str:
        """Look a word up."""
        asked.set()
        await go_on.wait()
        return f"{word}: a word"

    call = {"text": "I look it up.", "tool_calls": [{"name": "look_up", "arguments": '{"word": "tide"}'}]}
    async with start_agent(tools=(look_up,), script=[call]), console(gateway) as screen:
        await screen.type("@coder What is a tide?")
        await asked.wait()
        shown = await screen.shows("I look it up.", "coder is working, 1 call: look_up")
        assert "coder to ada" not in shown
        go_on.set()
        shown = await screen.shows("▶ coder worked on it, 1 call", "coder to ada")
        assert "I look it up." not in shown
        screen.app.query_one(FeedView).focus()
        await screen.pilot.press("enter")
        await screen.shows("▼ coder worked on it, 1 call", '→ look_up {"word": "tide"}')


async def test_a_message_is_ticked_and_opens_to_its_story(start_agent: StartAgent, gateway: RunningGateway) -> None:
    async with start_agent() as s, console(gateway) as screen:
        await screen.type("@coder The code of door 4 is K-47.")
        shown = await screen.shows("✓ read by coder in call 1", "coder to ada")
        assert "in prompt" not in shown
        screen.app.query_one(FeedView).focus()
        await screen.pilot.press("enter")
        await screen.shows("read by coder in call 1; in its context", "in prompt 1", "answered")
        await screen.pilot.press("enter")
        await s.control("clear")
        await screen.shows("✓ read by coder in call 1, found by recall")
        await screen.type("/urgent Door 4 is open.")
        shown = await screen.shows("Door 4 is open.", "urgent")
        assert re.search(r"ada  \d\d:\d\d  urgent\b", shown), shown


async def test_the_heading_says_that_the_connection_is_lost_and_back(space: SpaceConfig, tokens: TokenBook) -> None:
    async with AsyncExitStack() as stack:
        async with serve_gateway(space, tokens=tokens) as first:
            screen = await stack.enter_async_context(console(first))
        await screen.shows("connection lost; reconnecting")
        async with serve_gateway(space, port=first.port, tokens=tokens):
            await screen.shows("you are ada")


async def test_the_board_is_that_of_a_restarted_gateway(space: SpaceConfig, tokens: TokenBook) -> None:
    async with AsyncExitStack() as stack:
        async with serve_gateway(space, tokens=tokens) as first:
            screen = await stack.enter_async_context(console(first))
            bob = await stack.enter_async_context(connect(first.ws_url, max_queue=None))
            await bob.send(json.dumps(join_frame(space="demo", participant="bob", token=first.token_of("bob"))))
            await bob.send(json.dumps({"kind": kinds.REASONING_START, "payload": {}}))
            await screen.shows("demo · 2 here", "bob is working")
        await screen.shows("connection lost; reconnecting")
        async with serve_gateway(space, port=first.port, tokens=tokens):
            await screen.shows("demo · 1 here · you are ada", "bob: connection lost; the answer")


async def test_a_figure_that_is_old_says_so(gateway: RunningGateway) -> None:
    bob = Participant(gateway.ws_url, space="demo", id="bob", token=gateway.token_of("bob"), reports_context=False)
    async with bob, console(gateway) as screen:
        await bob.send(kinds.PARTICIPANT_STATUS, {"tokens": 5_000, "max_tokens": 8_192, "messages_in_context": 3})
        await screen.shows("~5,000 of ~8,192")
        await screen.type("@bob hello")
        await screen.shows("old, messages since")


async def test_a_pasted_text_keeps_all_its_lines(gateway: RunningGateway) -> None:
    bob = Participant(gateway.ws_url, space="demo", id="bob", token=gateway.token_of("bob"))
    heard: list[object] = []
    bob.on(kinds.CHAT)(lambda envelope: heard.append(envelope.body["text"]))
    async with bob, console(gateway) as screen:
        composer = screen.app.query_one(Composer)
        composer.post_message(Paste("Traceback:\n  line 1\n\n  line 2\n"))
        await screen.shows("Traceback:⏎  line 1⏎⏎  line 2")
        await screen.pilot.press("enter")
        await until(lambda: heard)
        assert heard == ["Traceback:\n  line 1\n\n  line 2"]
        await screen.pilot.press(*"draft", "up")
        assert composer.value == "Traceback:⏎  line 1⏎⏎  line 2"
        await screen.pilot.press("down")
        assert composer.value == "draft"
        await screen.type("@bob First row⏎second row")
        shown = await screen.shows("First row", "second row")
        assert not re.search("First row.*second row", shown), shown  # as on the dashboard


async def test_a_wrong_token_ends_the_application_with_the_reason(gateway: RunningGateway) -> None:
    app = SpaceApp(Identity(gateway.ws_url, "demo", "ada", "wrong"))
    async with app.run_test():
        with anyio.fail_after(30):
            await app.workers.wait_for_complete()
    assert isinstance(app.failure, Unauthorized)
