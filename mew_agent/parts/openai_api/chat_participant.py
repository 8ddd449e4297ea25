"""The participant behind the API: a person who forwards messages of chat clients to agents, and returns the answers.

Owns which agents are offered, how many requests may be open, and which error a missing answer is. Does not know HTTP,
or how an answer is assembled; see `mew_agent.participant.answers`.
"""

import json
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import anyio
from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.chat import MAIN_SESSION
from mew_protocol.payloads.participant import BoardEntry

from mew_agent.errors import GatewayError, NoAnswer, NotConnected, NotPermitted
from mew_agent.participant.answers.agent_answers import INACTIVITY_SECONDS
from mew_agent.participant.answers.builder import HOLD_CHARACTERS, AnswerBuilder, NoticePlacement
from mew_agent.participant.answers.context_notes import context_key, usage_of
from mew_agent.participant.answers.exchange import Exchange
from mew_agent.participant.participant import Participant
from mew_agent.participant.peers import PeerContext
from mew_agent.parts.openai_api.format import (
    BAD_REQUEST,
    BUSY,
    FORBIDDEN,
    UNAVAILABLE,
    ApiAnswer,
    Json,
    OpenAIApiError,
    no_answer,
    unknown_model,
)
from mew_agent.parts.openai_api.request import ApiRequest
from mew_agent.parts.openai_api.sessions import ChosenSession, unknown_response, with_transcript

STATUS_WAIT_SECONDS: Final = 0.5
"""Time for a new participant to report its status before we request it."""

MAX_OPEN_REQUESTS: Final = 100


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Options for answers.

    `configured` are the agents named in the space's configuration, present or absent. `inactivity_seconds` is the
    timeout for an agent without any activity. `clients` is the number of API keys, which share the open requests. For
    `notices` and `hold_characters` see `AnswerBuilder`.
    """

    configured: frozenset[str] = frozenset()
    inactivity_seconds: float = INACTIVITY_SECONDS
    hold_characters: int = HOLD_CHARACTERS
    notices: NoticePlacement = "content"
    clients: int = 1


@dataclass(frozen=True, slots=True)
class OfferedAgent:
    """An agent that clients see as a model. `since` is when it was first seen, in seconds since 1970."""

    name: str
    since: int
    is_present: bool
    context: PeerContext


@dataclass(frozen=True, slots=True)
class AgentQuestion:
    """What to send to an agent. `ignored` and `warnings` list parts of the request without effect.

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
    """A person of the space who acts for chat clients."""

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
        self._without_sessions: set[str] = set()
        self._open: Counter[str] = Counter()
        """How many requests each client has open."""

    # -- for clients -------------------------------------------------------------------------------------

    def agents(self) -> list[OfferedAgent]:
        """Return all agents: participants that report their context, and agents named in the configuration."""
        # Foreign agents send a window size without a report.
        contexts = {name: peer.context for name, peer in self.peers.items()}
        reporting = {name for name, one in contexts.items() if one.report is not None or one.max_tokens is not None}
        names = reporting | (self.options.configured - {self.id})
        now = int(time.time())
        return [
            OfferedAgent(name, self._since.setdefault(name, now), name in contexts, contexts.get(name, PeerContext()))
            for name in sorted(names)
        ]

    def agent(self, name: str) -> OfferedAgent:
        """Return one agent by name. Raises `OpenAIApiError` (404)."""
        agents = self.agents()
        found = next((agent for agent in agents if agent.name == name), None)
        if found is None:
            raise unknown_model(name, [agent.name for agent in agents])
        return found

    def board(self) -> list[BoardEntry]:
        """Return the last status of each agent, as far as this participant received it."""
        return [
            BoardEntry(id=agent.name, connected=agent.is_present, status=agent.context.as_status())
            for agent in self.agents()
        ]

    @asynccontextmanager
    async def open_exchange(self, agent: str, question: "str | AgentQuestion") -> AsyncIterator[Exchange]:
        """Ask an agent; leaving the block early cancels the turn. Raises `OpenAIApiError` without an answer."""
        question = AgentQuestion(question) if isinstance(question, str) else question
        self._check(agent, question.client, may_be_absent=question.is_for_person)
        answer = AnswerBuilder(
            notices="off" if question.response_format else self.options.notices,
            hold_characters=self.options.hold_characters,
            may_use_tools=self.answers.may_use_tools(agent),
        )
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
            raise OpenAIApiError(FORBIDDEN, "not_permitted", problem) from None
        except NotConnected as error:
            raise _no_gateway(str(error)) from None
        finally:
            self._open[question.client] -= 1

    def question_for(self, request: ApiRequest, chosen: ChosenSession) -> "AgentQuestion":
        """Return what to send to the agent for a request. Raises `OpenAIApiError` if it cannot answer as requested."""
        agent = self.agent(request.model)
        if request.response_format is not None and agent.is_present and not self._has_sessions(agent):
            raise response_format_unsupported(f"'{agent.name}' does not support response_format")
        question = AgentQuestion(request.text, chosen.name, request.response_format, client=chosen.owner[1])
        ignored = ("earlier messages",) if request.earlier else ()
        if chosen.name == MAIN_SESSION:
            return replace(question, ignored=ignored)
        if not self._has_sessions(agent):
            warning = f"'{agent.name}' keeps no sessions: all clients share one conversation with it"
            return replace(question, ignored=ignored, warnings=(warning,))
        sessions = (agent.context.report.sessions if agent.context.report else None) or ()
        if any((one.participant, one.session) == (self.id, chosen.name) for one in sessions):
            return question
        if request.previous_response is not None:
            raise unknown_response(request.previous_response, "belongs to a session that the agent has deleted")
        text, is_cut = with_transcript(request)
        warnings = ["the agent no longer had this conversation; it read the earlier messages again"]
        warnings = (warnings if chosen.is_known else []) + (["the oldest messages did not fit"] if is_cut else [])
        return replace(question, text=text, warnings=tuple(warnings))

    def answer_of(
        self, exchange: Exchange, request: ApiRequest, question: "AgentQuestion", shown: ApiAnswer
    ) -> ApiAnswer:
        """Return the answer in an exchange that ended. Raises `OpenAIApiError` if it is not in the requested format."""
        turn, text, warnings = exchange.turn, exchange.answer.text, list(question.warnings)
        if turn is None:
            self._without_sessions.add(exchange.agent)
        if question.response_format is not None:
            _check_format(exchange, text)
        if "tools" in request.ignored or "functions" in request.ignored:
            warnings.append("the client's tools were not offered; the agent calls the tools of its space")
        usage = exchange.usage.usage if turn is None else usage_of(turn.usage)
        last_call = exchange.usage.last_call if turn is None else usage_of(turn.last_call)
        ignored = (*request.ignored, *question.ignored)
        mew = context_key(exchange.agent, exchange.context, notices=exchange.answer.notices, ignored=ignored)
        values: Json = {"session": turn.session if turn else None, "last_call": last_call, "warnings": warnings or None}
        if turn is not None:
            values |= {"calls": turn.calls, "calls_without_usage": turn.calls_without_usage, "problem": turn.problem}
        mew |= {name: value for name, value in values.items() if value is not None}
        return ApiAnswer(text, shown.reasoning, usage, mew)

    def _has_sessions(self, agent: OfferedAgent) -> bool:
        """Return whether an agent answers in sessions, as far as is known; foreign agents send no context report."""
        return agent.context.report is not None and agent.name not in self._without_sessions

    def close(self) -> None:
        """End all open requests, because the server stops."""
        self.answers.fail_all("closing", "the server is stopping")

    def _check(self, agent: str, client: str, *, may_be_absent: bool) -> None:
        if not self.is_joined:
            raise _no_gateway()
        if agent not in self.peers and not may_be_absent:
            raise OpenAIApiError(UNAVAILABLE, "agent_not_here", f"'{agent}' is not in the space", is_retryable=True)
        if self.messenger.is_paused:
            raise OpenAIApiError(UNAVAILABLE, "paused", f"'{self.id}', the participant of this server, is paused")
        most = max(1, MAX_OPEN_REQUESTS // self.options.clients)
        if self._open[client] >= most:
            problem = (
                f"the server has {most} open requests {'' if self.options.clients == 1 else 'of this API key '}already"
            )
            raise OpenAIApiError(BUSY, "busy", problem, is_retryable=True)

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


def response_format_unsupported(problem: str) -> OpenAIApiError:
    """Return the error for an agent or a model that does not answer in the requested format."""
    return OpenAIApiError(BAD_REQUEST, "response_format_unsupported", problem, param="response_format")


def _check_format(exchange: Exchange, text: str) -> None:
    """Raise `OpenAIApiError` unless the answer is JSON, as every format other than text is."""
    turn = exchange.turn
    if turn is None:
        raise response_format_unsupported(f"'{exchange.agent}' does not support response_format")
    if turn.problem is not None:
        raise response_format_unsupported(f"'{exchange.agent}' could not answer in this format: {turn.problem}")
    try:
        json.loads(text)
    except ValueError:
        problem = f"the model of '{exchange.agent}' did not keep to the format; it answered: {text[:200]}"
        raise response_format_unsupported(problem) from None


def _no_gateway(cause: str = "") -> OpenAIApiError:
    tail = f": {cause}" if cause else ""
    return OpenAIApiError(UNAVAILABLE, "no_gateway", f"no connection to the space{tail}", is_retryable=True)
