"""[pure] What a fault run observed from outside, and which promises of delivery it contradicts.

Owns the record of sends and arrivals. Knows no sockets and no processes: `harness` reports to it.
"""

from collections import Counter, deque
from collections.abc import Iterable
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

HISTORY_LINES = 400
"""How many events a failure report shows."""


class PromiseBroken(AssertionError):
    """The run contradicts a promise. Says which, the seed, and what happened before."""


class TooLate(PromiseBroken):
    """Only a bound of waiting time was missed: nothing was lost, forged or wrong."""


class SendOutcome(Enum):
    """How a send ended for its sender."""

    CONFIRMED = "confirmed"
    UNKNOWN = "not confirmed"
    NEVER_SENT = "never sent"
    REFUSED = "refused"


class ChatKey(NamedTuple):
    """One chat: who sent it, and its place among the chats of that sender."""

    sender: str
    number: int


class DeliveryWitness:
    """Collects what each member sent and received."""

    def __init__(self, members: Iterable[str], *, unconfirmed_may_be_late: bool = False) -> None:
        """With `unconfirmed_may_be_late`, only confirmed chats of a sender must come in its order."""
        self._may_be_late = {SendOutcome.UNKNOWN} if unconfirmed_may_be_late else set()
        self.outcomes: dict[ChatKey, SendOutcome] = {}
        self.arrivals: dict[str, list[ChatKey]] = {member: [] for member in members}
        self.gaps: Counter[str] = Counter()
        self.history: deque[str] = deque(maxlen=HISTORY_LINES)
        self.counts: Counter[str] = Counter()

    def note(self, at: float, event: str) -> None:
        """Add a line to the history that a failure prints."""
        self.history.append(f"{at:9.3f}  {event}")

    def count(self, outcome: SendOutcome) -> int:
        """How many sends ended so."""
        return sum(one is outcome for one in self.outcomes.values())

    def missing(self) -> set[tuple[str, ChatKey]]:
        """Confirmed chats that a member without a reported gap does not have."""
        confirmed = {key for key, outcome in self.outcomes.items() if outcome is SendOutcome.CONFIRMED}
        return {
            (member, key)
            for member, arrived in self.arrivals.items()
            if not self.gaps[member]
            for key in confirmed.difference(arrived)
        }

    def violations(self) -> list[str]:
        """Every broken promise as one sentence; empty if all were kept."""
        found = [f"{member} never got the confirmed {_name(key)}" for member, key in sorted(self.missing())]
        for member, arrived in self.arrivals.items():
            found += [f"{member} got {_name(key)} {n} times" for key, n in Counter(arrived).items() if n > 1]
            found += self._contradictions(member, arrived)
            ordered = [key for key in arrived if self.outcomes.get(key) not in self._may_be_late]
            found += _reordered(member, ordered)
        return found + self._different_orders()

    def _contradictions(self, member: str, arrived: list[ChatKey]) -> list[str]:
        wrong = (SendOutcome.NEVER_SENT, SendOutcome.REFUSED)
        return [
            f"{member} got {_name(key)}, which its sender was told is {self.outcomes[key].value}"
            for key in arrived
            if self.outcomes.get(key) in wrong
        ]

    def _different_orders(self) -> list[str]:
        """All members without a gap have the same chats in the same order."""
        whole = [member for member in self.arrivals if not self.gaps[member]]
        found = []
        for first, second in pairwise(whole):
            for place, (one, other) in enumerate(zip(self.arrivals[first], self.arrivals[second], strict=False)):
                if one != other:
                    found.append(f"place {place}: {first} got {_name(one)}, {second} got {_name(other)}")
                    break
            else:
                if len(self.arrivals[first]) != len(self.arrivals[second]):
                    sizes = f"{len(self.arrivals[first])} and {len(self.arrivals[second])}"
                    found.append(f"{first} and {second} got {sizes} chats")
        return found


class QuestionWitness:
    """Collects what agents were asked, and what each member saw of their answers and reasonings."""

    def __init__(self, members: Iterable[str]) -> None:
        self.outcomes: dict[str, SendOutcome] = {}
        self.answers: dict[str, Counter[str]] = {member: Counter() for member in members}
        self.starts: dict[str, Counter[str]] = {member: Counter() for member in members}
        self.conclusions: dict[str, Counter[str]] = {member: Counter() for member in members}

    def open(self) -> set[str]:
        """Confirmed questions without an answer at some member."""
        confirmed = {name for name, outcome in self.outcomes.items() if outcome is SendOutcome.CONFIRMED}
        return {name for name in confirmed if not all(seen[name] for seen in self.answers.values())}

    def is_concluded(self) -> bool:
        """Whether every member saw the end of each reasoning."""
        return all(self.conclusions[member][name] for member, seen in self.starts.items() for name in seen)

    def violations(self) -> list[str]:
        """Every broken promise as one sentence; empty if all were kept."""
        found = []
        for member, seen in self.answers.items():
            for name, outcome in self.outcomes.items():
                fewest, most = _ALLOWED_ANSWERS[outcome]
                if not fewest <= seen[name] <= most:
                    found.append(f"{member} saw {seen[name]} answers to question {name}, which is {outcome.value}")
            for name, times in self.starts[member].items():
                if (times, self.conclusions[member][name]) != (1, 1):
                    ends = self.conclusions[member][name]
                    found.append(f"{member} saw {times} starts and {ends} conclusions of reasoning {name}")
        return found


class FrameWitness:
    """Collects the numbered frames of streams, and the gaps reported to members."""

    def __init__(self, members: Iterable[str]) -> None:
        self.sent: Counter[str] = Counter()
        self.received: dict[str, dict[str, list[int]]] = {member: {} for member in members}
        self.missed: dict[str, Counter[str]] = {member: Counter() for member in members}
        self.excused: set[tuple[str, str]] = set()
        """Members and streams with a gap of unknown size."""

    def receive(self, member: str, stream: str, number: int) -> None:
        """Record a frame."""
        self.received[member].setdefault(stream, []).append(number)

    def receive_gap(self, member: str, stream: str, missed: int | None) -> None:
        """Record a gap."""
        if missed is None:
            self.excused.add((member, stream))
        else:
            self.missed[member][stream] += missed

    def violations(self) -> list[str]:
        """Frames that came twice or out of order, were missed without a word, or reported although they came.

        A run in which nobody could write a frame has shown nothing of them.
        """
        found = [] if self.sent else ["no member could write a frame"]
        for member, streams in self.received.items():
            for stream, numbers in streams.items():
                told, holes = self.missed[member][stream], numbers[-1] + 1 - len(numbers)
                if numbers != sorted(set(numbers)):
                    found.append(f"{member} got frames of {stream} twice or out of order")
                if (member, stream) in self.excused:
                    continue
                if told < holes:
                    found.append(f"{member} missed {holes} frames of {stream} and was told of {told}")
                if len(numbers) + told > self.sent[stream]:
                    found.append(f"{member} got {len(numbers)} frames of {stream} and was told of {told} missed ones")
        return found


_ALLOWED_ANSWERS = {
    SendOutcome.CONFIRMED: (1, 1),
    SendOutcome.UNKNOWN: (0, 1),
    SendOutcome.NEVER_SENT: (0, 0),
    SendOutcome.REFUSED: (0, 0),
}


def _reordered(member: str, arrived: list[ChatKey]) -> list[str]:
    newest: dict[str, int] = {}
    found = []
    for key in arrived:
        if key.number < newest.get(key.sender, 0):
            found.append(f"{member} got {_name(key)} after number {newest[key.sender]}")
        newest[key.sender] = max(key.number, newest.get(key.sender, 0))
    return found


def _name(key: ChatKey) -> str:
    return f"chat {key.number} of {key.sender}"
