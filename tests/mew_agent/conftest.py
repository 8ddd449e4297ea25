"""The shared fixtures for agents: a real gateway, an agent on the rehearsal model, participants."""

from tests.support.agents import free_port, gateway, joined, space, start_agent, start_conversation, text, tokens

__all__ = ["free_port", "gateway", "joined", "space", "start_agent", "start_conversation", "text", "tokens"]
