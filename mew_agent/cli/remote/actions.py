"""Actions in a space without joining it: send a chat, read the board, request a compaction.

Owns these actions as values that a program can use; `mew mcp serve` offers them as tools. Each one goes over HTTP like
a one-shot command and looks up the space again, so the space may restart in between. Blocking.
"""

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mew_protocol import kinds
from mew_protocol.payloads.chat import Chat
from mew_protocol.payloads.participant import Compact, CompactDone
from pydantic import ValidationError

from mew_agent.cli.app.options import ConnectionOptions
from mew_agent.cli.board import words
from mew_agent.cli.remote.request import new_envelope, send_request
from mew_agent.cli.remote.session import ApiSession, open_session
from mew_agent.errors import BadAnswer, ConfigError, PeerTimeout

MAX_WAIT_SECONDS: Final = 600.0
KEPT_CHATS: Final = 500


@dataclass
class GatewayActions:
    """Actions of one participant, which `connection` names. All raise the errors of one-shot commands."""

    connection: ConnectionOptions
    _chats: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=KEPT_CHATS))
    _position: tuple[str, str] | None = None
    """The gateway and space that `_chats` are from, and the `since` of the next page."""
    _reading: threading.Lock = field(default_factory=threading.Lock)

    def send_chat(self, text: str, to: str | None = None, wait_seconds: float = 0.0) -> dict[str, Any]:
        """Send a chat to one participant, or to all; with `wait_seconds` wait for the participant's answer.

        Returns `id`, `to`, and `answer` (None if none came in time, or none was waited for). If the answer reports a
        failure, such as a model that cannot be reached, `failed` names it.
        """
        if not text.strip():
            raise ConfigError("text", "is empty", "a message")
        if to is None:
            if wait_seconds > 0:
                raise ConfigError("wait_seconds", "requires a recipient", "`to` with a participant's id")
            session = open_session(self.connection)
            sent = session.api.send(new_envelope(session, kinds.CHAT, Chat(text=text)).as_dict())
            return {"id": sent, "to": None, "answer": None}
        bound = min(wait_seconds, MAX_WAIT_SECONDS)
        with send_request(self.connection, to, kinds.CHAT, Chat(text=text), bound) as request:
            outcome: dict[str, Any] = {"id": request.sent.id, "to": to, "answer": None}
            if bound > 0:
                try:
                    _, body = next(request.answers(kinds.CHAT, accept_uncorrelated=True))
                    outcome["answer"] = str(body.get("text") or "")
                    if (failure := words.failure(request.last_status)) is not None:
                        outcome["failed"] = failure
                except PeerTimeout:
                    outcome["waited_seconds"] = bound
            return outcome

    def read_board(self) -> dict[str, Any]:
        """The last report of every participant, as `mew status --json` prints it."""
        return open_session(self.connection).api.board()

    def list_participants(self) -> list[dict[str, Any]]:
        """All participants of the space: `id`, `connected`, `may_send` (kinds of envelopes)."""
        return [
            {
                "id": one.get("id"),
                "connected": one.get("connected"),
                "may_send": [pattern.get("kind") for pattern in one.get("capabilities", ())],
            }
            for one in open_session(self.connection).api.participants()
        ]

    def request_compaction(
        self, peer: str, reason: str | None = None, target_tokens: int | None = None, wait_seconds: float = 120.0
    ) -> dict[str, Any]:
        """Ask a participant to compact its context, and wait for its answer with the tokens freed."""
        bound = max(0.1, min(wait_seconds, MAX_WAIT_SECONDS))
        payload = Compact(reason=reason, target_tokens=target_tokens)
        with send_request(self.connection, peer, kinds.PARTICIPANT_COMPACT, payload, bound) as request:
            _, body = next(request.answers(kinds.PARTICIPANT_COMPACT_DONE))
            try:
                done = CompactDone.model_validate(body)
            except ValidationError as error:
                raise BadAnswer(peer, str(error.errors(include_url=False)[0]["msg"])) from None
            return {"participant": peer, **done.model_dump(mode="json", exclude_none=True)}

    def recent_chat(self, limit: int = 20) -> list[dict[str, Any]]:
        """The newest chats that the gateway still keeps, oldest first: `id`, `at`, `from`, `to`, `text`."""
        with self._reading:
            session = open_session(self.connection)
            for page in self._new_pages(session):
                self._chats.extend(_as_chat(one) for one in page if one.get("kind") == kinds.CHAT)
            return list(self._chats)[-limit:] if limit > 0 else []

    def _new_pages(self, session: ApiSession) -> Iterator[list[dict[str, Any]]]:
        """The messages since the last read, page by page; all of them if the gateway's history was restarted."""
        where = f"{session.api.gateway} {session.api.space}"
        since = self._position[1] if self._position is not None and self._position[0] == where else None
        while True:
            page = session.api.messages(since)
            if since is None or page.get("complete") is False:
                self._chats.clear()
            since = str(page["next"])
            self._position = (where, since)
            yield page["messages"]
            if not page.get("more"):
                return


def _as_chat(envelope: Mapping[str, Any]) -> dict[str, Any]:
    payload = envelope.get("payload")
    text = payload.get("text") if isinstance(payload, Mapping) else None
    return {
        "id": envelope.get("id"),
        "at": envelope.get("ts"),
        "from": envelope.get("from"),
        "to": list(envelope.get("to") or ()),
        "text": str(text or ""),
    }
