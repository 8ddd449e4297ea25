"""What a configuration opens, and agents from a configuration or the environment."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mew_spaces.gateway.gateway import RunningGateway

from mew_agent.agent.agent import Agent
from mew_agent.agent.sessions import open_resources
from mew_agent.config.agent_config import AgentConfig
from mew_agent.context.sqlite_store import MemoryStore, SqliteStore
from mew_agent.conversation.conversation_events import LevelChanged
from mew_agent.errors import ConfigError, Unauthorized
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.participant.participant import Participant
from mew_agent.parts.rehearsal.model_service import EmbeddedRehearsal
from tests.support.agents import EnvelopeRecorder
from tests.support.waiting import PATIENCE_SECONDS, until

Joined = Callable[..., Participant]


def config(**settings: Any) -> AgentConfig:
    return AgentConfig.model_validate({"space": "demo", "id": "coder", "token": "t", **settings})


def environment(gateway: RunningGateway, **more: str) -> dict[str, str]:
    place = {"MEW_GATEWAY": gateway.ws_url, "MEW_SPACE": "demo", "MEW_PARTICIPANT_ID": "coder"}
    return {**place, "MEW_TOKEN": gateway.token_of("coder"), **more}


def test_a_configuration_opens_model_store_and_summariser(tmp_path: Path) -> None:
    plain = open_resources(config(base_url="http://127.0.0.1:1/v1"))
    assert isinstance(plain.model, OpenAIModel)
    assert isinstance(plain.store, MemoryStore)
    assert plain.summariser is None
    kept = open_resources(config(base_url="rehearsal", store=tmp_path / "s.db", summariser="small"))
    assert isinstance(kept.model, EmbeddedRehearsal)
    assert isinstance(kept.store, SqliteStore)
    assert isinstance(kept.summariser, EmbeddedRehearsal)
    elsewhere = open_resources(config(base_url="rehearsal", summariser={"model": "small", "base_url": "http://h/v1"}))
    assert isinstance(elsewhere.summariser, OpenAIModel)
    assert elsewhere.summariser.identity.endpoint == "http://h/v1"


async def test_an_agent_from_the_environment_answers_with_its_own_tools(
    gateway: RunningGateway, joined: Joined
) -> None:
    agent = Agent.from_environment(environment(gateway), base_url="rehearsal", context_token_limit=4096)

    @agent.tool
    def roll_dice(sides: int = 6) -> int:
        """Roll one die."""
        return sides

    with anyio.fail_after(PATIENCE_SECONDS):
        async with joined("ada") as ada, anyio.create_task_group() as tasks:
            tasks.start_soon(agent.take_part)
            await until(lambda: "coder" in ada.peers)
            answer = await ada.ask_agent("coder", 'call roll_dice with {"sides": 20}')
            assert "20" in answer.text
            assert answer.context.max_tokens == 4096
            await ada.send("participant/shutdown", {}, to="coder")


async def test_handlers_receive_events_of_the_agents_own_context(
    gateway: RunningGateway, joined: Joined, text: Callable[[int], str]
) -> None:
    agent = Agent.from_environment(environment(gateway), base_url="rehearsal", context_token_limit=2048)

    @agent.on(LevelChanged)
    async def tell(change: LevelChanged) -> None:
        await agent.chat(f"{change.before} -> {change.after}", to="ada")

    with anyio.fail_after(PATIENCE_SECONDS):
        async with joined("ada") as ada, anyio.create_task_group() as tasks:
            recorder = EnvelopeRecorder(ada)
            tasks.start_soon(agent.take_part)
            await until(lambda: "coder" in ada.peers)
            await ada.ask_agent("coder", "Hello?")
            first = await recorder.first("coder", "chat", text="unknown -> healthy")
            assert first.addressees == ("ada",)
            await ada.send("participant/shutdown", {}, to="coder")


async def test_a_left_or_refused_agent_closes_its_resources(gateway: RunningGateway, tmp_path: Path) -> None:
    refused = Agent.from_config(config(gateway=gateway.ws_url, base_url="rehearsal", store=tmp_path / "s.db"))
    with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(Unauthorized):
        await refused.take_part()
    (tmp_path / "s.db").rename(tmp_path / "t.db")  # possible only if the agent closed it
    place = environment(gateway)
    again = Agent.from_environment(place, base_url="rehearsal", store=tmp_path / "t.db")
    async with again:
        assert again.is_joined
    assert not again.is_joined


async def test_missing_settings_are_named(gateway: RunningGateway) -> None:
    with pytest.raises(ConfigError, match="no model is configured for 'coder': set OPENAI_API_KEY"):
        Agent.from_environment(environment(gateway))
    with pytest.raises(ConfigError, match="--participant or MEW_PARTICIPANT_ID: required"):
        Agent.from_environment({**environment(gateway), "MEW_PARTICIPANT_ID": ""}, base_url="rehearsal")
    with pytest.raises(
        ConfigError, match=r"^Agent\(sistem_prompt=\.\.\.\): unknown key 'sistem_prompt' \(did you mean"
    ):
        Agent.from_environment(environment(gateway), sistem_prompt="x")
    with pytest.raises(ConfigError, match=r"unknown key 'hopps' in loop_limits \(did you mean 'hops'\?\)"):
        Agent.from_environment(environment(gateway), loop_limits={"hopps": 3})
    with pytest.raises(ConfigError, match=r"unknown variable 'MEW_AGENT_CONFG' \(did you mean 'MEW_AGENT_CONFIG'\?\)"):
        Agent.from_environment(environment(gateway, MEW_AGENT_CONFG="{}"))
    own = {**environment(gateway), "MEW_GATEWAY": "", "MEW_GATEWAY_URL": "x"}  # the setting replaces the variable
    assert Agent.from_environment(own, gateway=gateway.ws_url, base_url="rehearsal").id == "coder"


async def test_keys_without_effect_are_logged(gateway: RunningGateway, caplog: pytest.LogCaptureFixture) -> None:
    Agent.from_environment(environment(gateway, OPENAI_BASE_URL="rehearsal"), mock_llm=True)
    assert "'mock_llm' has no effect" in caplog.text
