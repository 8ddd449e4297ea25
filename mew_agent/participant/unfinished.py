"""[pure] Chats without an answer and running turns, for `mew cancel`, `/cancel` and `Participant.cancel`.

Learns them from the envelopes of a space. Sends nothing.
"""

from collections.abc import Iterator
from typing import ClassVar, Final, NamedTuple

from mew_listener.bounded_dict import BoundedDict, FairDict
from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.json_values import value_at
from mew_protocol.payloads.chat import chat_refusal_in

_REMEMBERED: Final = 200


class Cancellation(NamedTuple):
    """An envelope that cancels a chat or a turn of an agent: its kind and its headers."""

    kind: str
    agent: str
    correlation_id: tuple[str, ...] = ()
    context: str | None = None


class Turn(NamedTuple):
    """A running turn: its agent, and the chats that it answers."""

    agent: str
    chats: tuple[str, ...]


class Unfinished:
    """Unfinished work by id: open chats of `me` with their addressees, and running turns."""

    def __init__(self, me: str) -> None:
        self.me = me
        self.chats: BoundedDict[str, tuple[str, ...]] = BoundedDict(_REMEMBERED)
        self.turns: FairDict[str, Turn] = FairDict(_REMEMBERED, lambda _, turn: turn.agent)

    received_kinds: ClassVar = (
        *(kinds.CHAT, kinds.CHAT_ACKNOWLEDGE, kinds.CHAT_CANCEL),
        *(kinds.REASONING_START, kinds.REASONING_CONCLUSION, kinds.SYSTEM_PRESENCE),
    )

    def receive(self, envelope: Envelope) -> None:
        """Apply the next envelope."""
        match envelope.kind:
            case kinds.CHAT if envelope.sender == self.me:
                self.chats[envelope.id] = envelope.addressees
            case kinds.CHAT | kinds.CHAT_ACKNOWLEDGE | kinds.CHAT_CANCEL if self.chats:
                self._close_chats(envelope)
            case kinds.REASONING_START if envelope.sender != self.me:
                self.turns[envelope.id] = Turn(envelope.sender, envelope.correlation_ids)
            case kinds.REASONING_CONCLUSION:
                self.turns.pop(str(envelope.context), None)
            case kinds.SYSTEM_PRESENCE if envelope.body.get("event") == "leave":
                self._left(value_at(envelope.body, "participant", "id"))
            case _:
                pass

    def _close_chats(self, envelope: Envelope) -> None:
        sender, answered = envelope.sender, envelope.correlation_ids
        match envelope.kind:
            case kinds.CHAT if not answered and envelope.names(self.me):
                # A guess: some agents do not name the chat that they answer.
                answered = tuple(self.chats)
            case kinds.CHAT_CANCEL:
                for one in answered if sender == self.me else ():
                    self.chats.pop(one, None)
                return
            case kinds.CHAT_ACKNOWLEDGE if sender == self.me or chat_refusal_in(envelope) is None:
                return
            case _:
                pass
        for one in answered:  # a chat to several waits for the others
            if left := tuple(name for name in self.chats.pop(one, ()) if name != sender):
                self.chats[one] = left

    def _left(self, agent: object) -> None:
        for turn in [at for at, one in self.turns.items() if one.agent == agent]:
            del self.turns[turn]

    def cancellations(self, target: str | None = None) -> Iterator[Cancellation]:
        """Yield the cancellations of all work of `target`, or of all work for us."""
        yield from self._chat_cancellations(target)
        for turn, (agent, chats) in self.turns.items():
            ours = [one for one in chats if one in self.chats]
            is_cancelled = any(agent in self.chats[one] for one in ours)  # with its chat
            if not is_cancelled and (agent == target or (target is None and ours)):
                yield Cancellation(kinds.REASONING_CANCEL, agent, context=turn)

    def _chat_cancellations(self, target: str | None) -> Iterator[Cancellation]:
        for chat, agents in self.chats.items():
            for agent in agents:
                if target in (None, agent):
                    yield Cancellation(kinds.CHAT_CANCEL, agent, correlation_id=(chat,))
