"""The pytest fixtures for users' programs: a space, its gateway, a model, variables of programs, a participant."""

from collections.abc import AsyncIterator, Callable

import pytest

from mew_agent import Agent, NotPermitted, Participant
from mew_agent.cli.programs.start_gateway import RunningGateway
from mew_agent.parts.testing import ModelServer

Environment = Callable[[str], dict[str, str]]


@pytest.fixture
async def agent(mew_environment: Environment) -> AsyncIterator[Agent]:
    """A program of a user, which has nothing but its environment. It joins before the participant of the test."""
    async with Agent.from_environment(mew_environment("agent")) as agent:
        yield agent


async def test_a_program_gets_all_variables_that_an_agent_reads(
    agent: Agent, mew_participant: Participant, mew_model: ModelServer
) -> None:
    answer = await mew_participant.ask_agent(agent.id, "Hello?")
    assert "Hello?" in answer.text
    assert answer.context.tokens == mew_model.requests[-1].reported["total_tokens"]


async def test_a_changed_model_refuses_the_next_request(
    agent: Agent, mew_participant: Participant, mew_model: ModelServer
) -> None:
    mew_model.change(status=401)
    answer = await mew_participant.ask_agent(agent.id, "Hello?")
    assert "refused my key" in answer.text


def test_a_plain_function_reads_the_board_of_its_gateway(mew_gateway: RunningGateway) -> None:
    assert {one.id for one in mew_gateway.board().participants} == {"ada", "agent", "tools"}


async def test_the_participant_is_the_default_one_of_the_space(mew_participant: Participant) -> None:
    assert (mew_participant.space, mew_participant.id) == ("test", "ada")
    assert mew_participant.may_send("participant/compact")


class TestOwnSpace:
    """A project that overrides `mew_space`."""

    @pytest.fixture
    def mew_space(self) -> str:
        return "space: {id: mine}\nparticipants:\n  eve: {capabilities: [{kind: chat}]}\n  bob: {}\n"

    async def test_the_first_participant_joins_with_its_own_capabilities(self, mew_participant: Participant) -> None:
        assert (mew_participant.space, mew_participant.id) == ("mine", "eve")
        with pytest.raises(NotPermitted):
            await mew_participant.compact("bob")
