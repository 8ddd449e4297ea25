"""[pure] When the gateway asks a participant for its status.

It asks participants that do not report by themselves: some seconds after they joined, and after chats from or to them.
Owns how often. Does not know who may be asked, and sends nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

JOIN_GRACE: Final = timedelta(seconds=2)
"""How long a participant that joined has to report by itself."""

PAUSE: Final = timedelta(seconds=10)
"""At most one request to a participant in this time."""

MAX_UNANSWERED: Final = 2
"""Participants that leave this many requests unanswered are not asked again before they join or report."""

MAX_AT_ONCE: Final = 10
"""How many participants are asked each time, so that a thousand that join together cost little."""


class Asked(NamedTuple):
    """One participant that may be asked. `due_at` None: its figure is not old, or it does not answer."""

    due_at: datetime | None = None
    asked_at: datetime | None = None
    unanswered: int = 0


NEVER: Final = Asked(unanswered=MAX_UNANSWERED)


class StatusRequests:
    """The participants of a space that do not report by themselves, as far as is known."""

    def __init__(self) -> None:
        self.asked: dict[str, Asked] = {}

    def reset(self, asked: Mapping[str, Asked]) -> None:
        """Continue with these participants."""
        self.asked = dict(asked)

    def shift(self, by: timedelta) -> None:
        """Move all times: the wall clock was set by this much."""
        for name, one in self.asked.items():
            due_at, asked_at = (None if at is None else at + by for at in (one.due_at, one.asked_at))
            self.asked[name] = Asked(due_at, asked_at, one.unanswered)

    def joined(self, participant: str, *, now: datetime) -> None:
        """Ask a participant soon, unless it reports."""
        self.asked[participant] = Asked(now + JOIN_GRACE)

    def left(self, participant: str) -> None:
        """Ask a participant no more."""
        self.asked.pop(participant, None)

    def worked(self, participant: str, *, now: datetime) -> None:
        """Ask a participant that works on a chat, and so has a context, unless it is known already."""
        self.asked.setdefault(participant, Asked(now))

    def reported(self, participant: str, *, only_when_asked: bool) -> None:
        """Note a status. A participant is asked again only if it reports only when it is asked."""
        known = self.asked.get(participant, NEVER)
        self.asked[participant] = Asked(None, known.asked_at) if only_when_asked else NEVER

    def chatted(self, participants: Iterable[str], *, now: datetime) -> None:
        """Note a chat from or to these participants."""
        for name in participants:
            known = self.asked.get(name)
            if known is not None and known.due_at is None and known.unanswered < MAX_UNANSWERED:
                due_at = now if known.asked_at is None else max(now, known.asked_at + PAUSE)
                self.asked[name] = known._replace(due_at=due_at)

    @property
    def is_waiting(self) -> bool:
        """Whether a participant is to be asked sooner or later."""
        return any(one.due_at is not None for one in self.asked.values())

    def take_due(self, may_ask: Callable[[str], bool], *, now: datetime) -> list[str]:
        """Return the participants to ask now, those that waited longest first; at most `MAX_AT_ONCE`."""
        due = sorted((one.due_at, name) for name, one in self.asked.items() if one.due_at and one.due_at <= now)
        found: list[str] = []
        for _, name in due:
            if len(found) == MAX_AT_ONCE:
                break
            known = self.asked[name]
            if known.unanswered >= MAX_UNANSWERED or not may_ask(name):
                self.asked[name] = NEVER
                continue
            self.asked[name] = Asked(now + PAUSE, now, known.unanswered + 1)
            found.append(name)
        return found
