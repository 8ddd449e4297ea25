"""The echo, the calculator and the fulfiller, in a real space."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.mcp import approval_of, digest_of
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import serve_gateway

from mew_agent.participant.participant import Participant
from mew_agent.parts.simple_agents.behaviours import BEHAVIOURS, evaluate_arithmetic, number_text
from tests.support.agents import EnvelopeRecorder

SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}]}
  bob: {capabilities: [{kind: mcp/proposal}]}
  simple:
    command: mew
    capabilities: [{kind: chat}, {kind: mcp/reject}, {kind: mcp/request, payload: {method: "tools/*"}}]
"""


@asynccontextmanager
async def scene(behaviour: str) -> AsyncIterator[tuple[Participant, Participant, EnvelopeRecorder]]:
    """`ada` and everything she receives, `bob`, and the simple agent with its behaviour."""
    async with serve_gateway(parse_space(SPACE)) as gateway:

        def person(name: str) -> Participant:
            return Participant(gateway.ws_url, space="demo", id=name, token=gateway.token_of(name))

        simple = person("simple")
        BEHAVIOURS[behaviour](simple)
        async with person("ada") as ada, person("bob") as bob, simple:
            yield ada, bob, EnvelopeRecorder(ada)


def text_of(response: Envelope) -> str:
    return str(response.body["result"]["content"][0]["text"])


async def test_echo_repeats_chats_for_it_and_refers_to_them() -> None:
    async with scene("echo") as (ada, _, recorder):
        other = await ada.chat("for bob", to="bob")
        said = await ada.chat("hello")
        received = await recorder.first("simple", "chat")
        assert (received.body["text"], received.correlation_id) == ("Echo: hello", (said.id,))
        assert not recorder.sent_by("simple", "chat", about=other)


async def test_two_echoes_do_not_answer_each_other_forever() -> None:
    async with scene("echo") as (ada, _, recorder):
        first = await ada.chat("Echo: from the other one", correlation_id=("x",))
        last = await ada.chat("Echo: said by a person")
        await recorder.first("simple", "chat", about=last)
        assert not recorder.sent_by("simple", "chat", about=first)


async def test_calculator_answers_requests_to_it_and_broadcasts() -> None:
    async with scene("calculator") as (ada, _, recorder):
        listed = await ada.ask("mcp/request", {"method": "tools/list"}, to="simple", answer="mcp/response")
        assert [tool["name"] for tool in listed.body["result"]["tools"]] == ["add", "multiply", "evaluate"]
        for name, arguments, result in (
            ("add", {"a": 2, "b": 3}, "5"),
            ("multiply", {"a": 1.5, "b": 2}, "3"),
            ("evaluate", {"expression": "2 * (3 + 4) - 1"}, "13"),
        ):
            payload = {"method": "tools/call", "params": {"name": name, "arguments": arguments}}
            request = await ada.send("mcp/request", payload)
            assert text_of(await recorder.first("simple", "mcp/response", about=request)) == result
        assert len(recorder.sent_by("simple", "mcp/response")) == 4


async def test_calculator_reports_the_problem() -> None:
    async with scene("calculator") as (ada, _, _ear):
        payload = {"method": "tools/call", "params": {"name": "evaluate", "arguments": {"expression": "1/0"}}}
        answer = await ada.ask("mcp/request", payload, to="simple", answer="mcp/response")
        assert answer.body["result"]["isError"] is True
        assert "division by zero" in json.dumps(answer.as_dict())


async def test_fulfiller_sends_permitted_requests_and_rejects_others() -> None:
    async with scene("fulfiller") as (_, bob, recorder):
        wanted = {"method": "tools/call", "params": {"name": "add", "arguments": {"a": 1}}}
        proposal = await bob.send("mcp/proposal", wanted, to="ada")
        request = await recorder.first("simple", "mcp/request", about=proposal)
        assert (request.payload, request.to) == (approval_of(proposal), ("ada",))
        assert {**wanted, "proposal_digest": digest_of(wanted, "bob", ("ada",))} == request.payload
        refused = await bob.send("mcp/proposal", {"method": "resources/read"})
        rejected = await recorder.first("simple", "mcp/reject", about=refused)
        assert rejected.body["reason"] == "incapable"


NO_ARITHMETIC = ("", "import os", "__import__('os')", "a + 1", "1 if 1 else 2", "'x' * 3", "True", "1 and 2")
TOO_LARGE = ("9**9**9", "1e400", "(-8) ** 0.5", "(" * 300 + "1" + ")" * 300, "1" * 600, "-" * 400 + "1", "(9**200)**99")


@pytest.mark.parametrize("expression", NO_ARITHMETIC + TOO_LARGE)
def test_only_small_arithmetic_is_evaluated(expression: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        number_text(evaluate_arithmetic(expression))


@given(st.integers(-999, 999), st.integers(-999, 999), st.sampled_from("+-*"))
def test_integers_stay_integers(first: int, second: int, sign: str) -> None:
    expression = f"({first}) {sign} ({second})"
    expected = {"+": first + second, "-": first - second, "*": first * second}[sign]
    assert number_text(evaluate_arithmetic(expression)) == str(expected)


@pytest.mark.parametrize(("value", "text"), [(3.0, "3"), (0.5, "0.5"), (2**60, str(2**60)), (1e300, "1e+300")])
def test_numbers_are_formatted_for_people(value: float, text: str) -> None:
    assert number_text(value) == text
