"""[pure] Chooses an agent's conversation for a request, and the text for the agent.

Owns the policies, and the record of earlier answers that identifies continued conversations. Does not know agents or
HTTP.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Literal

from mew_listener.bounded_dict import FairDict
from mew_protocol.payloads.chat import MAIN_SESSION

from mew_agent.parts.openai_api.request import ApiRequest
from mew_agent.parts.shared.api_limits import MAX_TEXT_BYTES, AnswerFailed, session_name

SessionPolicy = Literal["chat", "client", "shared"]
"""`chat`: each conversation of a client is a session; `client`: each client is one; `shared`: there are none."""

MAX_REMEMBERED: Final = 10_000
"""How many answers are remembered; the API key with the most loses its oldest, which continues in a new session."""

_TRANSCRIPT: Final = "Earlier in this conversation:\n\n{earlier}\n\nNow the user writes:\n\n{text}"

Owner = tuple[str, str, str]
"""The model, the name of the API key, and the user: conversations of different owners never mix."""


@dataclass(frozen=True, slots=True)
class ChosenSession:
    """The session for one request. `is_known`: an earlier answer belongs to it."""

    name: str
    owner: Owner
    is_known: bool = False


@dataclass(eq=False)
class ClientSessions:
    """The sessions of all clients of one server."""

    policy: SessionPolicy = "chat"
    _by_history: FairDict[str, tuple[Owner, str]] = field(
        default_factory=lambda: FairDict(MAX_REMEMBERED, lambda _, one: one[0][1])
    )
    _by_response: FairDict[str, tuple[Owner, str]] = field(
        default_factory=lambda: FairDict(MAX_REMEMBERED, lambda _, one: one[0][1])
    )
    _newest: FairDict[tuple[Owner, str], str] = field(
        default_factory=lambda: FairDict(MAX_REMEMBERED, lambda key, _: key[0][1])
    )

    def choose(self, request: ApiRequest, key: str, new_name: str) -> ChosenSession:
        """Return the session for a request; a new conversation gets `new_name`. Raises `AnswerFailed`.

        `key` is the name of the API key that the client sent.
        """
        owner = (request.model, key, request.user)
        if request.previous_response is not None:
            return self._continued(request.previous_response, owner)
        if self.policy == "shared":
            return ChosenSession(MAIN_SESSION, owner)
        if request.conversation or self.policy == "client":
            name = _session_of(key, request.user, request.conversation)
            return ChosenSession(name, owner, (owner, name) in self._newest)
        # A conversation continues from here only once: a second continuation is a branch, and a new session.
        _, known = (
            self._by_history.pop(_digest(owner, request.earlier), (owner, None)) if request.earlier else (owner, None)
        )
        return ChosenSession(known or _session_of(key, request.user, new_name), owner, known is not None)

    def forget(self, chosen: ChosenSession, request: ApiRequest) -> None:
        """Forget a request that never reached its agent, so that it continues the conversation when it is repeated."""
        if chosen.is_known and request.earlier and self.policy == "chat":
            self._by_history[_digest(chosen.owner, request.earlier)] = chosen.owner, chosen.name

    def remember(self, chosen: ChosenSession, request: ApiRequest, answer: str, response_id: str) -> None:
        """Remember an answer, so that the client can continue the conversation."""
        history = (*request.earlier, ("user", request.text), ("assistant", answer))
        if self.policy == "chat":
            self._by_history[_digest(chosen.owner, history)] = chosen.owner, chosen.name
        self._by_response[response_id] = (chosen.owner, chosen.name)
        self._newest[chosen.owner, chosen.name] = response_id

    def _continued(self, response_id: str, owner: Owner) -> ChosenSession:
        known_owner, name = self._by_response.get(response_id, (None, ""))
        if known_owner != owner:
            problem = "is not known for this model, API key and user; responses are kept until the server restarts"
            raise unknown_response(response_id, problem)
        if self.policy != "shared" and self._newest.get((owner, name)) != response_id:
            raise unknown_response(response_id, "is not the newest of its conversation; an agent cannot go back")
        return ChosenSession(name, owner, is_known=True)


def unknown_response(response_id: str, problem: str) -> AnswerFailed:
    """Return the error for a response that cannot be continued."""
    return AnswerFailed(
        HTTPStatus.BAD_REQUEST,
        "previous_response_not_found",
        f"previous response '{response_id[:80]}' {problem}",
        param="previous_response_id",
    )


def _session_of(key: str, *parts: str) -> str:
    """Return a session's name that includes its API key, so that agents divide sessions among the keys."""
    name = session_name(key, *parts)
    return name if not key else f"{hashlib.blake2b(key.encode(errors='replace'), digest_size=4).hexdigest()}:{name}"


def with_transcript(request: ApiRequest) -> tuple[str, bool]:
    """Return the text for an agent that lacks the earlier messages, and True if some did not fit."""
    lines = [f"{role}: {text}" for role, text in request.earlier]
    while True:
        text = _TRANSCRIPT.format(earlier="\n\n".join(lines), text=request.text) if lines else request.text
        if len(text.encode(errors="replace")) <= MAX_TEXT_BYTES or not lines:
            return text, len(lines) < len(request.earlier)
        del lines[: max(1, len(lines) // 8)]


def _digest(owner: Owner, history: Sequence[tuple[str, str]]) -> str:
    # Clients trim white space around the texts.
    words = [(role, " ".join(text.split())) for role, text in history]
    return hashlib.blake2b(repr((owner, words)).encode(errors="replace"), digest_size=16).hexdigest()
