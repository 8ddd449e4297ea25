"""What somebody can do in a space without being in it: say something, read the board, ask for a compaction.

Owns these actions as values a program can use. Each goes over HTTP like a one-shot command: it finds the space anew,
so that it may be restarted in between, and takes nobody's place in it. Blocking.
"""

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.chat import Chat
from mew_protocol.payloads.participant import Compact, CompactDone
from pydantic import ValidationError

from mew_agent.cli.app.options import Flags
from mew_agent.cli.remote.identity import Seat, take_seat
from mew_agent.cli.remote.question import asking
from mew_agent.errors import BadAnswer, ConfigError, PeerTimeout

LONGEST_WAIT_SECONDS: Final = 600.0
KEPT_CHATS: Final = 500


@dataclass
class Desk:
    """A place to act from; `flags` say who acts and where, as on the command line.

    Every method raises the errors of one-shot commands: `ConfigError`, `NotConnected`, `NotPermitted`, `PeerTimeout`.
    """

    flags: Flags
    _chats: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=KEPT_CHATS))
    _place: tuple[str, str] | None = None
    _reading: threading.Lock = field(default_factory=threading.Lock)

    def send_chat(self, text: str, to: str | None = None, wait_seconds: float = 0.0) -> dict[str, Any]:
        """Say something, to everybody unless `to` is somebody; with `wait_seconds` also wait for their answer.

        Returns `id`, `to`, and `answer` (None when none came in time, or none was waited for).
        """
        if not text.strip():
            raise ConfigError("text", "there is nothing to say", "some text")
        if to is None:
            if wait_seconds > 0:
                raise ConfigError("wait_seconds", "nobody in particular would answer", "`to` with a participant's id")
            return {"id": self._say_to_everybody(text), "to": None, "answer": None}
        bound = min(wait_seconds, LONGEST_WAIT_SECONDS)
        with asking(self.flags, to, kinds.CHAT, Chat(text=text), bound) as question:
            said: dict[str, Any] = {"id": question.id, "to": to, "answer": None}
            if bound > 0:
                try:
                    _, body = next(question.answers(kinds.CHAT, loosely=True))
                    said["answer"] = str(body.get("text") or "")
                except PeerTimeout:
                    said["waited_seconds"] = bound
            return said

    def read_board(self) -> dict[str, Any]:
        """The last report of every participant, as `mew status --json` shows it."""
        return take_seat(self.flags).api.board()

    def list_participants(self) -> list[dict[str, Any]]:
        """Everybody who belongs to the space: `id`, `connected`, `may_send` (kinds of envelopes)."""
        return [
            {
                "id": one.get("id"),
                "connected": one.get("connected"),
                "may_send": [pattern.get("kind") for pattern in one.get("capabilities", ())],
            }
            for one in take_seat(self.flags).api.participants()
        ]

    def request_compaction(
        self, peer: str, reason: str | None = None, target_tokens: int | None = None, wait_seconds: float = 120.0
    ) -> dict[str, Any]:
        """Ask a participant to compact its context and wait for its answer, which says what that freed."""
        bound = max(0.1, min(wait_seconds, LONGEST_WAIT_SECONDS))
        payload = Compact(reason=reason, target_tokens=target_tokens)
        with asking(self.flags, peer, kinds.PARTICIPANT_COMPACT, payload, bound) as question:
            _, body = next(question.answers(kinds.PARTICIPANT_COMPACT_DONE))
            try:
                done = CompactDone.model_validate(body)
            except ValidationError as error:
                raise BadAnswer(peer, str(error.errors(include_url=False)[0]["msg"])) from None
            return {"participant": peer, **done.model_dump(mode="json", exclude_none=True)}

    def recent_chat(self, limit: int = 20) -> list[dict[str, Any]]:
        """The last chats that the gateway still keeps: `id`, `at`, `from`, `to`, `text`, oldest first."""
        with self._reading:
            seat = take_seat(self.flags)
            for page in self._news(seat):
                self._chats.extend(_shown(one) for one in page if one.get("kind") == kinds.CHAT)
            return list(self._chats)[-limit:] if limit > 0 else []

    def _news(self, seat: Seat) -> Iterator[list[dict[str, Any]]]:
        """What was said since the last look, page by page; all of it again when the history began anew."""
        where = f"{seat.api.gateway} {seat.api.space}"
        since = self._place[1] if self._place is not None and self._place[0] == where else None
        while True:
            page = seat.api.messages(since)
            if since is None or page.get("complete") is False:
                self._chats.clear()
            since = str(page["next"])
            self._place = (where, since)
            yield page["messages"]
            if not page.get("more"):
                return

    def _say_to_everybody(self, text: str) -> str:
        seat = take_seat(self.flags)
        envelope = Envelope.write(
            kinds.CHAT,
            id=str(uuid4()),
            ts=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            sender=seat.api.participant,
            payload=Chat(text=text),
        )
        return seat.api.send(envelope.as_dict())


def _shown(chat: Mapping[str, Any]) -> dict[str, Any]:
    payload = chat.get("payload")
    text = payload.get("text") if isinstance(payload, Mapping) else None
    return {
        "id": chat.get("id"),
        "at": chat.get("ts"),
        "from": chat.get("from"),
        "to": list(chat.get("to") or ()),
        "text": str(text or ""),
    }
