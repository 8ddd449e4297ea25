"""[pure] Stops agents from answering each other without end.

Knows the agents of the space, how many chats agents have sent since a person or program spoke, and the peers that this
agent no longer answers. Decides from envelopes alone. Does not know whether a chat is for the agent (see
`AddressFilter`), and sends and stores nothing.

A participant is an agent if it reports a context, announces reasoning, or acknowledges a chat as `processing` or
`queued`. Everyone else counts as a person or a program. Their chats are not counted; only their reactions to this
agent's chats are limited in rate.
"""

import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from mew_listener.bounded_dict import BoundedDict, FairDict
from mew_protocol import kinds
from mew_protocol.context_report import Waiting
from mew_protocol.envelope import Envelope
from mew_protocol.json_values import object_at, objects_at, text_at

from mew_agent.settings import LoopLimits

MAX_CHATS: Final = 2_000
"""How many chats are remembered; an answer to an older one counts as the first of a thread."""

MAX_PEERS: Final = 10_000
"""How many peers are remembered: the most recent senders."""

MAX_OPEN_REASONINGS: Final = 8
"""How many reasonings without a conclusion are remembered of one agent."""

MAX_QUESTION_CHARS: Final = 20_000
"""How much of a text, at its end, is searched for a question."""

WINDOW_SECONDS: Final = 60.0

Verdict = Literal["answer", "context", "loop_stopped", "no_room"]
"""What to do with a chat: answer it, keep it as context, or let it wait until a person or a program speaks, or until
there is room for it."""

LOOP_STOPPED: Final = "held"
"""The state of a chat with the verdict `loop_stopped`, as session files have it."""

_QUOTED: Final = re.compile(
    r"(?s:```.*?(?:```|\Z))|`[^`\n]*`|^[ \t]*>.*$|\"[^\"\n]*\"|“[^“”\n]*”|https?://\S+", re.MULTILINE
)
_QUESTION: Final = re.compile(r"\?(?![^\s?!.)\]*_'\"])|[？؟]")
_WORKING: Final = ("processing", "queued")


@dataclass(slots=True)
class _Chat:
    """A seen chat. `hops` is the number of agents' chats since `origin` spoke, including this one."""

    sender: str
    to: tuple[str, ...]
    hops: int
    origin: str | None
    text: int
    """The hash of its text, which may be long."""

    def is_for(self, participant: str) -> bool:
        return not self.to or participant in self.to


_FORGOTTEN: Final = _Chat("", (), hops=0, origin=None, text=0)
"""For a chat that is not remembered any more."""


@dataclass(slots=True)
class _Reasoning:
    """A running reasoning: the id of its chat, and whether a chat has followed from it."""

    about: str
    has_spoken: bool = False


@dataclass(frozen=True, slots=True)
class StoppedTalk:
    """A peer that this agent does not answer: the reason, the time, and the person or program that began it
    (`origin`).
    """

    reason: str
    since: str
    origin: str | None = None


@dataclass
class LoopGuard:
    """The guard of the agent `me`. Pass every envelope to `observe`, in order."""

    me: str
    limits: LoopLimits
    stopped: dict[str, StoppedTalk] = field(default_factory=dict)
    """The peers that are not answered now."""
    _agents: BoundedDict[str, None] = field(default_factory=lambda: BoundedDict(MAX_PEERS))
    _chats: FairDict[str, _Chat] = field(default_factory=lambda: FairDict(MAX_CHATS, lambda _, chat: chat.sender))
    """By their ids, the newest of an id: some clients count theirs from 1 at every start."""
    _reasonings: BoundedDict[str, dict[str, _Reasoning]] = field(default_factory=lambda: BoundedDict(MAX_PEERS))
    """The open reasonings of each agent, by their ids, oldest first."""
    _answered_at: BoundedDict[str, deque[float]] = field(default_factory=lambda: BoundedDict(MAX_PEERS))

    @property
    def waits(self) -> tuple[Waiting, ...]:
        """The stopped conversations as a report shows them."""
        return tuple(
            Waiting(
                kind="loop",
                peer=peer,
                what=f"{talk.reason}; a message from a person lets it continue",
                since=talk.since,
            )
            for peer, talk in self.stopped.items()
        )

    def is_agent(self, participant: str) -> bool:
        """Return whether a participant is known to be an agent."""
        return participant == self.me or participant in self._agents

    def observe(self, envelope: Envelope) -> None:
        """Learn from any envelope, including our own."""
        sender, body = envelope.sender, envelope.body
        match envelope.kind:
            case kinds.CHAT:
                self._remember(envelope)
            case kinds.PARTICIPANT_STATUS if isinstance(body.get("context"), Mapping):
                self._agents[sender] = None
            case kinds.CHAT_ACKNOWLEDGE if body.get("status") in _WORKING:
                self._agents[sender] = None
            case kinds.REASONING_START:
                self._agents[sender] = None
                self._begin_reasoning(envelope)
            case kinds.REASONING_CONCLUSION:
                self._end_reasoning(envelope)
            case kinds.SYSTEM_WELCOME:
                on_board = objects_at(body, "board")
                for one in on_board:
                    if object_at(one, "status", "context"):
                        self._agents[str(one.get("id"))] = None
            case _:
                pass

    def _begin_reasoning(self, start: Envelope) -> None:
        about = next((name for name in start.correlation_ids if name in self._chats), None)
        if not start.correlation_ids and (repeated := text_at(start.body, "input")):
            # Some agents do not correlate; they repeat the text of the chat.
            same = hash(repeated)
            about = next((name for name in reversed(self._chats) if self._chats[name].text == same), None)
        if about is not None:
            silent = [item for item in self._reasonings.get(start.sender, {}).items() if not item[1].has_spoken]
            begun = (*silent, (start.id, _Reasoning(about)))
            self._reasonings[start.sender] = dict(begun[-MAX_OPEN_REASONINGS:])

    def _end_reasoning(self, conclusion: Envelope) -> None:
        # An agent that reasons about two chats at once may name the newest reasoning, or none, in each conclusion: the
        # reasoning that its last chat followed from has ended.
        known = self._reasonings.get(conclusion.sender, {})
        spoken = (name for name, reasoning in known.items() if reasoning.has_spoken)
        known.pop(next(spoken, str(conclusion.context)), None)

    def release(self, chat: Envelope, *, at_seconds: float) -> tuple[str, ...]:
        """Return the peers that may be answered again after this chat or resume by a person or a program.

        It must be for this agent or the peer. A reaction to our own chat counts only within the rate.
        """
        if self.is_agent(chat.sender):
            return ()
        if self._is_answer_to_us(chat) and self._is_rate_reached(chat.sender, at_seconds):
            return ()
        released = tuple(peer for peer in self.stopped if chat.is_for(self.me) or chat.is_for(peer))
        for peer in released:
            del self.stopped[peer]
            if chat.addressees:
                self._answered_at.pop(peer, None)
            talking = (peer, self.me)
            for seen in self._chats.values():
                if seen.sender in talking:
                    seen.hops = 0
        return released

    def decide(self, chat: Envelope, *, at_seconds: float | None) -> Verdict:
        """Decide about a chat that is for this agent; it was observed before.

        `at_seconds` is monotonic time; None for a past chat, which does not count towards the rate.
        """
        sender, is_agent = chat.sender, self.is_agent(chat.sender)
        is_answer = self._is_answer_to_us(chat)
        if chat.body.get("needs_reply") is False:
            return "context"
        if not is_agent and not is_answer:
            return "answer"
        if is_agent and is_answer and not asks_something(chat):
            return "context"
        if is_agent and sender in self.stopped:
            return "loop_stopped"
        seen = self._chats.get(chat.id, _FORGOTTEN)
        if (reason := self._limit_reached(sender, seen, at_seconds)) is not None:
            self.stopped.setdefault(sender, StoppedTalk(reason, chat.ts, seen.origin))
            return "loop_stopped"
        if at_seconds is not None:
            self._answered_at[sender] = answered = self._answered_at.get(sender, deque())
            answered.append(at_seconds)
        return "answer"

    def _limit_reached(self, sender: str, seen: _Chat, at_seconds: float | None) -> str | None:
        """Return the limit that a chat has reached; None if it may be answered."""
        if self.is_agent(sender) and seen.hops >= self.limits.hops:
            return f"{seen.hops} messages between agents since a person spoke"
        if at_seconds is not None and self._is_rate_reached(sender, at_seconds):
            return f"{self.limits.exchanges_per_minute} exchanges within a minute"
        return None

    def restore(self, waiting: Iterable[Envelope]) -> None:
        """Stop talking to the senders of chats that wait since an earlier process."""
        for chat in waiting:
            self.stopped.setdefault(chat.sender, StoppedTalk("stopped before a restart", chat.ts))

    def _remember(self, chat: Envelope) -> None:
        hops, origin = 0, chat.sender if not self.is_agent(chat.sender) else None
        if self.is_agent(chat.sender):
            before = self._antecedent(chat)
            hops = 1 if before is None else before.hops + 1
            origin = None if before is None else before.origin
        self._chats[chat.id] = _Chat(chat.sender, chat.addressees, hops, origin, hash(text_at(chat.body, "text")))

    def _antecedent(self, chat: Envelope) -> _Chat | None:
        """Return the chat that an agent's chat follows: the one it answers, works on or last received; None if
        unknown.
        """
        if chat.correlation_ids:
            return max(
                (self._chats[name] for name in chat.correlation_ids if name in self._chats),
                key=lambda seen: seen.hops,
                default=None,
            )
        return self._worked_on(chat) or self._received_last(chat)

    def _worked_on(self, chat: Envelope) -> _Chat | None:
        """Return the chat that the sender was reasoning about before it spoke."""
        known = [one for one in reversed(self._reasonings.get(chat.sender, {}).values()) if one.about in self._chats]
        if not known:
            return None
        of_addressee = (one for one in known if self._chats[one.about].sender in chat.addressees)
        reasoning = next(of_addressee, known[0])
        reasoning.has_spoken = True
        return self._chats[reasoning.about]

    def _received_last(self, chat: Envelope) -> _Chat | None:
        """Return the newest chat that the sender may have answered; prefer one of its addressees."""
        others = [seen for seen in map(self._chats.__getitem__, reversed(self._chats)) if seen.sender != chat.sender]
        from_addressee = [seen for seen in others if seen.sender in chat.addressees]
        for seen_before in (from_addressee, others):
            if (found := next((seen for seen in seen_before if seen.is_for(chat.sender)), None)) is not None:
                return found
        return from_addressee[0] if from_addressee else None

    def _is_answer_to_us(self, chat: Envelope) -> bool:
        """Return whether a chat refers to one of ours. Chats from before a restart are unknown."""
        known = [self._chats[name] for name in chat.correlation_ids if name in self._chats]
        if known:
            return any(seen.sender == self.me for seen in known)
        return bool(chat.correlation_ids) and chat.names(self.me) and self.is_agent(chat.sender)

    def _is_rate_reached(self, sender: str, at_seconds: float) -> bool:
        answered = self._answered_at.get(sender, deque())
        while answered and answered[0] <= at_seconds - WINDOW_SECONDS:
            answered.popleft()
        return len(answered) >= self.limits.exchanges_per_minute


def asks_something(chat: Envelope) -> bool:
    """Return whether a chat is a question: by its `needs_reply`, else by its sentences.

    Question marks inside quotations, quoted lines, code and addresses do not count.
    """
    needs_reply: Any = chat.body.get("needs_reply")
    if isinstance(needs_reply, bool):
        return needs_reply
    return _QUESTION.search(_QUOTED.sub(" ", text_at(chat.body, "text")[-MAX_QUESTION_CHARS:])) is not None
