"""Turns a request of the API into a question to an agent, and the answer into an answer of the API.

Owns the handling of parts that an agent does not use, and the check of the requested format. Remembers agents without
sessions. Does not know HTTP; `shared.chat_participant` has the exchange.
"""

import json
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Literal

from mew_protocol.payloads.chat import MAIN_SESSION, RESPONSE_FORMAT_UNSUPPORTED

from mew_agent.participant.answers.agent_answers import Exchange
from mew_agent.parts.openai_api.format import ApiAnswer, Json
from mew_agent.parts.openai_api.request import ApiRequest
from mew_agent.parts.openai_api.session_choice import ChosenSession, unknown_response, with_transcript
from mew_agent.parts.shared.api_limits import AnswerFailed
from mew_agent.parts.shared.chat_participant import AgentQuestion, ChatParticipant, OfferedAgent
from mew_agent.parts.shared.reported_usage import context_key, usage_of
from mew_agent.parts.shared.text_answer import TextAnswer


@dataclass(eq=False)
class Questions:
    """Reads requests for the agents that `participant` reaches."""

    participant: ChatParticipant
    _without_sessions: dict[str, Literal["refuses", "ignores"]] = field(default_factory=dict)
    """For each agent without sessions, its reaction to the last requested session or format."""

    def agent(self, name: str) -> OfferedAgent:
        """Return one agent by name. Raises `AnswerFailed` (404)."""
        agents = self.participant.agents()
        found = next((agent for agent in agents if agent.name == name), None)
        if found is None:
            raise unknown_model(name, [agent.name for agent in agents])
        return found

    def question_for(self, request: ApiRequest, chosen: ChosenSession) -> AgentQuestion:
        """Return the question for a request. Raises `AnswerFailed` if the agent cannot answer as requested."""
        agent = self.agent(request.model)
        if request.response_format is not None:
            self._check_takes_format(agent)
        question = AgentQuestion(request.text, chosen.name, request.response_format, client=chosen.owner[1])
        ignored = ("earlier messages",) if request.earlier else ()
        if chosen.name == MAIN_SESSION:
            return replace(question, ignored=ignored)
        if not self._has_sessions(agent):
            # Keep the session in the question: if the agent supports it after all, it must not mix its clients.
            return replace(question, ignored=ignored)
        if self._knows_session(agent, chosen.name):
            return question
        if request.previous_response is not None:
            raise unknown_response(request.previous_response, "belongs to a session that the agent has deleted")
        text, is_cut = with_transcript(request)
        warnings = ["the agent no longer had this conversation; it read the earlier messages again"]
        warnings = (warnings if chosen.is_known else []) + (["the oldest messages did not fit"] if is_cut else [])
        return replace(question, text=text, warnings=tuple(warnings))

    def answer_of(
        self, exchange: Exchange, request: ApiRequest, question: AgentQuestion, shown: ApiAnswer
    ) -> ApiAnswer:
        """Return the answer of an ended exchange. Raises `AnswerFailed` if it is not in the requested format."""
        turn, text, warnings = exchange.turn, exchange.answer.text, list(question.warnings)
        if turn is not None:
            self._without_sessions.pop(exchange.agent, None)
        elif question.session not in (None, MAIN_SESSION):
            self._without_sessions[exchange.agent] = "ignores" if exchange.has_own_session else "refuses"
            warnings.append(f"'{exchange.agent}' keeps no sessions: all clients share one conversation with it")
        if question.response_format is not None:
            _check_format(exchange, text, is_ignored=turn is None and exchange.session == question.session)
        if "tools" in request.ignored or "functions" in request.ignored:
            warnings.append("the client's tools were not offered; the agent calls the tools of its space")
        assert isinstance(exchange.answer, TextAnswer)
        ignored = (*request.ignored, *question.ignored)
        mew = context_key(exchange.agent, exchange.context, notices=exchange.answer.notices, ignored=ignored)
        values: Json = {"warnings": warnings or None}
        if turn is None:
            usage = exchange.answer.usage.usage
            values |= {"last_call": exchange.answer.usage.last_call}
        else:
            usage = usage_of(turn.usage)
            values |= {"session": turn.session, "last_call": usage_of(turn.last_call), "problem": turn.problem}
            values |= {"calls": turn.calls, "calls_without_usage": turn.calls_without_usage}
        mew |= {name: value for name, value in values.items() if value is not None}
        return ApiAnswer(text, shown.reasoning, usage, mew)

    def _check_takes_format(self, agent: OfferedAgent) -> None:
        # An agent that refuses sessions would also refuse a format that it does not support.
        takes_format = self._has_sessions(agent) or self._without_sessions.get(agent.name) == "refuses"
        if agent.is_present and not takes_format:
            raise _format_unsupported(f"'{agent.name}' does not support response_format")

    def _knows_session(self, agent: OfferedAgent, session: str) -> bool:
        sessions = (agent.context.report.sessions if agent.context.report else None) or ()
        return any((one.participant, one.session) == (self.participant.id, session) for one in sessions)

    def _has_sessions(self, agent: OfferedAgent) -> bool:
        """Return True if an agent answers in sessions, as far as known; foreign agents send no context report."""
        return agent.context.report is not None and agent.name not in self._without_sessions


def unknown_model(model: str, known: list[str]) -> AnswerFailed:
    """Return the error for a model that is not an agent of the space."""
    agents = f"agents: {', '.join(known)}" if known else "the space has no agents"
    problem = f"no agent '{model}' in this space ({agents})"
    return AnswerFailed(HTTPStatus.NOT_FOUND, "model_not_found", problem, param="model")


def _check_format(exchange: Exchange, text: str, *, is_ignored: bool) -> None:
    """Raise `AnswerFailed` unless the answer is JSON, as all formats other than text require."""
    turn = exchange.turn
    if is_ignored:
        raise _format_unsupported(f"'{exchange.agent}' does not support response_format")
    if turn is not None and turn.problem is not None:
        raise _format_unsupported(f"'{exchange.agent}' could not answer in this format: {turn.problem}")
    try:
        json.loads(text)
    except ValueError:
        problem = f"the model of '{exchange.agent}' did not keep to the format; it answered: {text[:200]}"
        raise _format_unsupported(problem) from None


def _format_unsupported(problem: str) -> AnswerFailed:
    return AnswerFailed(HTTPStatus.BAD_REQUEST, RESPONSE_FORMAT_UNSUPPORTED, problem, param="response_format")
