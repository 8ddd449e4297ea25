"""Forwards messages of API clients to participants, as a person of the space, and returns the answers.

Selects the offered agents, limits open requests, and describes missing answers. Does not know HTTP or an API;
`mew_agent.participant.answers` assembles answers.
"""

import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import anyio
from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.participant import BoardEntry

from mew_agent.errors import GatewayError, NoAnswer, NotConnected, NotPermitted
from mew_agent.participant.answers.agent_answers import INACTIVITY_SECONDS, Exchange
from mew_agent.participant.answers.builder import HOLD_CHARACTERS, AnswerBuilder
from mew_agent.participant.participant import Participant
from mew_agent.participant.peers import PeerContext
from mew_agent.parts.shared.api_limits import AnswerFailed, no_answer
from mew_agent.parts.shared.text_answer import NoticePlacement, TextAnswer

STATUS_WAIT_SECONDS: Final = 0.5
"""Time for a new participant to report its status before we request it."""

MAX_OPEN_REQUESTS: Final = 100


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Options for answers.

    `configured` are the agents named in the space's configuration, present or absent, `silent` its participants that
    answer nothing. `inactivity_seconds` is the timeout for an inactive agent. `clients` is the number of API keys that
    share the open requests. `notices` as in `TextAnswer`; None: clients show notices and tool calls elsewhere. For
    `hold_characters` see `AnswerBuilder`.
    """

    configured: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    inactivity_seconds: float = INACTIVITY_SECONDS
    hold_characters: int = HOLD_CHARACTERS
    notices: NoticePlacement | None = "content"
    clients: int = 1


@dataclass(frozen=True, slots=True)
class OfferedAgent:
    """An agent offered to clients. `since` is the time it was first seen, in seconds since 1970."""

    name: str
    since: int
    is_present: bool
    context: PeerContext


@dataclass(frozen=True, slots=True)
class AgentQuestion:
    """A message for an agent. `ignored` and `warnings` list parts of the request without effect.

    `is_for_person`: a person may be absent, or take any time to answer. `client` is the name of the API key.
    """

    text: str
    session: str | None = None
    response_format: Mapping[str, Any] | None = None
    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    is_for_person: bool = False
    client: str = ""


class ChatParticipant(Participant):
    """Acts for API clients as a person of the space."""

    def __init__(
        self,
        gateway: str,
        *,
        space: str,
        person: str,
        token: str,
        options: ChatOptions | None = None,
        discover: bool = False,
    ) -> None:
        super().__init__(gateway, space=space, id=person, token=token, discover=discover)
        self.options = options or ChatOptions()
        self._since: dict[str, int] = {}
        self._open: Counter[str] = Counter()
        """How many requests each client has open."""

    def agents(self) -> list[OfferedAgent]:
        """Return all agents: participants that report their context, and agents named in the configuration."""
        # Foreign agents send a window size without a report.
        contexts = {name: peer.context for name, peer in self.peers.items()}
        reporting = {name for name, one in contexts.items() if one.report is not None or one.max_tokens is not None}
        names = (reporting | (self.options.configured - {self.id})) - self.options.silent
        now = int(time.time())
        return [
            OfferedAgent(name, self._since.setdefault(name, now), name in contexts, contexts.get(name, PeerContext()))
            for name in sorted(names)
        ]

    def board(self) -> list[BoardEntry]:
        """Return the last status of each agent that this participant received."""
        return [
            BoardEntry(id=agent.name, connected=agent.is_present, status=agent.context.as_status())
            for agent in self.agents()
        ]

    @asynccontextmanager
    async def open_exchange(self, agent: str, question: str | AgentQuestion) -> AsyncIterator[Exchange]:
        """Ask an agent; leaving the block early cancels the turn. Raises `AnswerFailed` without an answer."""
        question = AgentQuestion(question) if isinstance(question, str) else question
        self._check(agent, question.client, may_be_absent=question.is_for_person)
        hold, may_use_tools = self.options.hold_characters, self.answers.may_use_tools(agent)
        answer = AnswerBuilder(hold_characters=hold, may_use_tools=may_use_tools)
        if self.options.notices is not None:
            place = "off" if question.response_format else self.options.notices
            answer = TextAnswer(notices=place, hold_characters=hold, may_use_tools=may_use_tools)
        self._open[question.client] += 1
        try:
            async with self.answers.open(
                agent,
                question.text,
                answer,
                inactivity_seconds=math.inf if question.is_for_person else self.options.inactivity_seconds,
                session=question.session,
                response_format=question.response_format,
            ) as exchange:
                yield exchange
        except NoAnswer as failure:
            raise no_answer(failure) from None
        except NotPermitted:
            problem = f"'{self.id}' may not chat with '{agent}' in this space"
            raise AnswerFailed(HTTPStatus.FORBIDDEN, "not_permitted", problem) from None
        except NotConnected as error:
            raise _unavailable("no_gateway", f"no connection to the space: {error}", is_retryable=True) from None
        finally:
            self._open[question.client] -= 1

    def close(self) -> None:
        """End all open requests, because the server stops."""
        self.answers.router.fail_all("closing", "the server is stopping")

    def _check(self, agent: str, client: str, *, may_be_absent: bool) -> None:
        if not self.is_joined:
            raise _unavailable("no_gateway", "no connection to the space", is_retryable=True)
        if agent not in self.peers and not may_be_absent:
            raise _unavailable("agent_not_here", f"'{agent}' is not in the space", is_retryable=True)
        if self.messenger.is_paused:
            raise _unavailable("paused", f"'{self.id}', the participant of this server, is paused")
        most = max(1, MAX_OPEN_REQUESTS // self.options.clients)
        if self._open[client] >= most:
            problem = (
                f"the server has {most} open requests {'' if self.options.clients == 1 else 'of this API key '}already"
            )
            raise AnswerFailed(HTTPStatus.TOO_MANY_REQUESTS, "busy", problem, is_retryable=True)

    async def joined(self) -> None:
        self.start_soon(self._request_missing_statuses)

    async def receive(self, envelope: Envelope) -> None:
        if envelope.kind == kinds.SYSTEM_PRESENCE and envelope.body.get("event") == "join":
            self.start_soon(self._request_missing_statuses)

    async def _request_missing_statuses(self) -> None:
        """Request the status of participants without one: some agents report only on request."""
        await anyio.sleep(STATUS_WAIT_SECONDS)
        missing = [name for name in self.peers if self.peers[name].context.messages is None]
        if missing:
            with suppress(GatewayError, NotPermitted):
                await self.send(kinds.PARTICIPANT_REQUEST_STATUS, {}, to=missing)


def _unavailable(code: str, problem: str, *, is_retryable: bool = False) -> AnswerFailed:
    return AnswerFailed(HTTPStatus.SERVICE_UNAVAILABLE, code, problem, is_retryable=is_retryable)
