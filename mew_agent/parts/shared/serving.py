"""Common parts of commands that serve other programs: the offered agents, and running to the end."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from mew_protocol.kinds import CHAT
from mew_spaces.config.loading import SpaceConfig

from mew_agent.cli.app.addresses import listening_failures
from mew_agent.cli.remote.identity import Identity, require_person
from mew_agent.errors import NotPermitted
from mew_agent.parts.shared.chat_participant import ChatParticipant

REACHABLE: Final = "anyone with the API key can talk to your agents"
"""The risk of a server that other machines can reach."""


async def run_server(
    participant: ChatParticipant,
    server: AbstractAsyncContextManager[str],
    address: str,
    announce: Callable[[str, list[str]], None],
) -> None:
    """Run a server until the connection to the space ends for good, and raise its error.

    `announce` is called with the base URL and the agents. Raises `ConfigError` if the port of `address` is taken, and
    `NotPermitted` if the participant may chat with none of the agents.
    """
    async with participant:
        agents = [agent.name for agent in participant.agents()]
        if agents and not any(participant.may_send(CHAT, {"text": "?"}, to=(name,)) for name in agents):
            raise NotPermitted(participant.id, CHAT)
        with listening_failures("--port", address):
            async with server as base_url:
                announce(base_url, agents)
                await participant.until_ended()
    await participant.run_forever()


def served_agents(config: SpaceConfig | None, who: Identity) -> frozenset[str]:
    """Return the agents of space.yaml that answer chats.

    Raises `ConfigError` if `who` is a program, whose connection would be replaced.
    """
    if config is None:
        return frozenset()
    require_person(who, config)
    return frozenset(name for name, one in config.participants.items() if one.acts_as == "agent") - silent_in(config)


def silent_in(config: SpaceConfig | None) -> frozenset[str]:
    """Return the participants of space.yaml that answer neither chats nor calls: observers, and agents at a meter."""
    named = {} if config is None else config.participants
    unasked = {name for name, one in named.items() if one.acts_as == "agent" and not one.answers_chats}
    return frozenset(unasked | {name for name, one in named.items() if one.acts_as == "observer"})
