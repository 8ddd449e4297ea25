"""Recalling cut or cleared results: when it is offered, and in which parts."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from mew_agent.conversation.conversation_events import ConversationEvent, LevelChanged

StartAgent = Callable[..., Any]

BOOK = "\n".join(f"page {n}: {n * 17} birds flew over {n * 3} houses" for n in range(3_000))


def read_book() -> str:
    """A long book."""
    return BOOK


def calls(*requested: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"tool_calls": [{"name": name, "arguments": arguments}]} for name, arguments in requested]


def results(request: Any) -> list[str]:
    return [str(message["content"]) for message in request.body["messages"] if message["role"] == "tool"]


def tools(request: Any) -> list[str]:
    return [tool["function"]["name"] for tool in request.body.get("tools", ())]


async def test_a_cut_result_can_be_recalled_in_parts(start_agent: StartAgent) -> None:
    async with start_agent(tools=[read_book], script=[*calls(("read_book", "{}")), {"text": "Long."}]) as s:
        assert await s.ask("Read.") == "Long."
        (part,) = results(s.main_requests[-1])
        assert "of this result are omitted" in part
        await s.recorder.until(lambda: "would_overflow" in str(s.recorder.words("coder")))
        said = next(word for word in s.recorder.words("coder") if word.startswith("would_overflow:"))
        assert re.fullmatch(r"would_overflow:read_book: about [\d,]{6,} tokens .* stay outside the context", said)
        assert tools(s.main_requests[0]) == ["read_book"]
        assert tools(s.main_requests[-1]) == ["read_book", "recall_result"]
        found = re.search(r"kept as (\S+) ", part)
        assert found is not None
        name = found[1]
        requested = [f'{{"id": "{name}", "find": "page 1500:"}}', f'{{"id": "{name}", "start": 200}}']
        script = [*calls(*(("recall_result", arguments) for arguments in requested)), {"text": "Done."}]
        s.server.change(script=script)
        assert await s.ask("Read on.") == "Done."
        pieces = results(s.main_requests[-1])[-2:]
        for piece, start in zip(pieces, (BOOK.index("page 1500:"), 200), strict=True):
            heading, _, text = piece.partition("\n")
            assert heading.startswith(f"[{name}, characters {start:,} to ")
            assert BOOK[start:].startswith(text)
            assert len(text) > 200


@pytest.mark.part("policies")
async def test_a_cut_result_that_changes_the_level_tells_handlers_before_the_status(start_agent: StartAgent) -> None:
    full = {"figure": "next_prompt", "op": "ge", "fraction": "1/4"}
    policy = {"name": "team", "based_on": "mew", "levels": [{"name": "tight", "severity": 2, "at": full}]}
    script = [*calls(("read_book", "{}")), {"text": "Long."}]
    async with start_agent(agent={"policy": policy}, tools=[read_book], script=script) as s:
        told: list[tuple[str, str]] = []

        async def note(event: ConversationEvent) -> None:
            if isinstance(event, LevelChanged):
                announced = s.agent.context.report
                assert announced is not None
                assert announced.level == event.before
                told.append((event.before, event.after))

        s.agent.conversation.events.subscribe(note)
        await s.ask("Read.")
        assert ("healthy", "tight") in told
        cut = next(one for one in s.statuses if one["status"].startswith("would_overflow"))
        assert cut["context"]["level"] == "tight"


async def test_a_digest_quotes_what_matters_in_a_cut_result(start_agent: StartAgent) -> None:
    rule = "You must never delete the file /etc/harbour.conf without asking Ada."

    def read_rules() -> str:
        """A long text with one rule."""
        return f"{BOOK}\n\n{rule}\n\n{BOOK}"

    async with start_agent(tools=[read_rules], script=[*calls(("read_rules", "{}")), {"text": "Long."}]) as s:
        await s.ask("Read.")
        name = results(s.main_requests[-1])[0].partition("kept as ")[2].partition(" ")[0]
        script = [*calls(("recall_result", f'{{"id": "{name}", "digest": true}}')), {"text": "Done."}]
        s.server.change(script=script)
        await s.ask("What matters in it?")
        assert rule in results(s.main_requests[-1])[-1]


async def test_a_wrong_id_or_position_is_an_error(start_agent: StartAgent) -> None:
    async with start_agent(tools=[read_book], script=[*calls(("read_book", "{}")), {"text": "Long."}]) as s:
        await s.ask("Read.")
        (part,) = results(s.main_requests[-1])
        name = part.partition("kept as ")[2].partition(" ")[0]
        requested = [
            '{"id": "nothing"}',
            f'{{"id": "{name}", "start": 10000000}}',
            f'{{"id": "{name}", "find": "whales"}}',
        ]
        s.server.change(script=[*calls(*(("recall_result", one) for one in requested)), {"text": "Done."}])
        await s.ask("Read on.")
        wrong, behind, absent = results(s.main_requests[-1])[-3:]
        assert wrong == "Error: nothing is stored as 'nothing'"
        assert "the start is past its end" in behind
        assert "the text does not occur after character 0" in absent


async def test_long_results_can_be_refused_and_bounded_by_config(start_agent: StartAgent) -> None:
    script = [*calls(("read_book", "{}")), {"text": "Too long."}]
    async with start_agent(
        tools=[read_book], script=script, agent={"long_results": "refuse", "max_result_tokens": 100}
    ) as s:
        await s.ask("Read.")
        (told,) = results(s.main_requests[-1])
        assert "exceeds the 100 tokens of room" in told
    async with start_agent(tools=[read_book], script=script, agent={"max_result_tokens": 200}) as s:
        await s.ask("Read.")
        grown = s.main_requests[1].prompt_tokens - s.main_requests[0].prompt_tokens
        assert grown < 200 + 200  # the call, the result, and the recall tool


async def test_a_cut_result_keeps_the_accounts_right(start_agent: StartAgent) -> None:
    async with start_agent(tools=[read_book], script=[*calls(("read_book", "{}")), {"text": "Long."}]) as s:
        await s.ask("Read.")
        await s.ask("And now?")
        assert abs(s.statuses[-1]["context"]["drift_tokens"]) <= 16
        true = [request.prompt_tokens + request.completion_tokens for request in s.main_requests]
        assert [status["tokens"] for status in s.reported] == true


async def test_results_that_do_not_fit_are_named_as_the_cause(start_agent: StartAgent) -> None:
    """A server's window may be much smaller than configured."""
    async with start_agent(
        tools=[read_book],
        script=calls(("read_book", "{}")),
        window_tokens=1_000,
        agent={"context_token_limit": 100_000, "max_result_tokens": 3_000},
    ) as s:
        answer = await s.ask("Read.")
        assert "What my tools returned for your message (about " in answer
        assert "does not fit my window of 1,000 tokens" in answer
        assert await s.ask("And now?")
