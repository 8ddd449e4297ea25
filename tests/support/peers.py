"""A space of peers that offer tools, some of whom may only propose: for tests of requests, discovery and agents."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from mew_protocol.envelope import Envelope
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent.participant.discovery import Pace
from mew_agent.participant.event_handlers import EventEmitter, Listeners, ProposalMade
from mew_agent.participant.mcp_client import Timeouts
from mew_agent.participant.participant import Participant
from mew_agent.participant.peers import PeerChanges

PEERS = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}]}
  bob: {capabilities: [{kind: "*"}]}
  asker:
    command: mew
    capabilities: [{kind: chat}, {kind: "mcp/request"}, {kind: mcp/proposal}, {kind: mcp/withdraw}]
  proposer:
    command: mew
    capabilities: [{kind: chat}, {kind: mcp/proposal}, {kind: mcp/withdraw}]
  mute: {command: mew, capabilities: [{kind: chat}]}
  tools: {command: mew, capabilities: [{kind: mcp/response}, {kind: mcp/notification}, {kind: participant/status}]}
  more: {command: mew, capabilities: [{kind: mcp/response}]}
"""

QUICK = Pace(stagger_seconds=0.0, answer_seconds=1.0, retry_seconds=(0.01, 0.01), time_to_live_seconds=60.0)
SOON = Timeouts(answer_seconds=0.3, decision_seconds=0.3)

Join = Callable[..., Participant]


@asynccontextmanager
async def space_of_peers(text: str = PEERS) -> AsyncIterator[tuple[RunningGateway, Join]]:
    """The gateway of such a space, and `join(name, **options)`, which makes a participant to be entered."""
    async with serve_gateway(parse_space(text)) as gateway:

        def join(name: str, **options: Any) -> Participant:
            me = Participant(gateway.ws_url, space="demo", id=name, token=gateway.token_of(name), **options)
            me.discovery.pace = QUICK
            return me

        yield gateway, join


def with_tools(me: Participant) -> Participant:
    """The participant, with tools: `add`, `fail`, which raises, and `where`, which answers a text."""

    @me.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @me.tool
    def fail() -> str:
        """Never works."""
        raise RuntimeError("out of order")

    @me.tool
    def where() -> str:
        """Say where this is."""
        return me.id

    return me


def read_proposal(*to: str, payload: dict[str, Any]) -> ProposalMade:
    """A proposal by `coder`, as a participant receives it."""
    me = Participant("ws://h", space="demo", id="keeper", token="t")
    envelope = Envelope.write("mcp/proposal", id="p", ts="t", sender="coder", payload=payload, to=to)
    (proposal,) = EventEmitter(me.messenger, Listeners()).events_in(envelope, PeerChanges())
    assert isinstance(proposal, ProposalMade)
    return proposal
