"""[pure] Chats without an answer and running turns, for `mew cancel`, `/cancel` and `Participant.cancel`.

Follows the envelopes of a space to know them. Sends nothing.
"""

from collections.abc import Callable, Iterator, Mapping
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

    def receive(self, envelope: Envelope) -> None:
        """Apply the next envelope."""
        handler = self._HANDLERS.get(envelope.kind)
        if handler is not None:
            handler(self, envelope)

    def _chat(self, chat: Envelope) -> None:
        if chat.sender == self.me:
            self.chats[chat.id] = chat.addressees
        elif chat.correlation_ids:
            self._answered(chat)
        elif chat.names(self.me):
            # A guess: some agents do not say which chat they answer.
            self._answered(chat, tuple(self.chats))

    def _acknowledged(self, envelope: Envelope) -> None:
        if envelope.sender != self.me and chat_refusal_in(envelope) is not None:
            self._answered(envelope)

    def _answered(self, envelope: Envelope, chats: tuple[str, ...] | None = None) -> None:
        """Close chats for the sender: those that the envelope correlates with, or `chats`."""
        for one in envelope.correlation_ids if chats is None else chats:  # a chat to several waits for the others
            if left := tuple(name for name in self.chats.pop(one, ()) if name != envelope.sender):
                self.chats[one] = left

    def _chat_cancelled(self, envelope: Envelope) -> None:
        if envelope.sender == self.me:
            for one in envelope.correlation_ids:
                self.chats.pop(one, None)

    def _turn_started(self, envelope: Envelope) -> None:
        if envelope.sender != self.me:
            self.turns[envelope.id] = Turn(envelope.sender, envelope.correlation_ids)

    def _turn_ended(self, envelope: Envelope) -> None:
        self.turns.pop(str(envelope.context), None)

    def _presence_changed(self, envelope: Envelope) -> None:
        if envelope.body.get("event") == "leave":
            agent = value_at(envelope.body, "participant", "id")
            for turn in [at for at, one in self.turns.items() if one.agent == agent]:
                del self.turns[turn]

    _HANDLERS: ClassVar[Mapping[str, Callable[["Unfinished", Envelope], None]]] = {
        kinds.CHAT: _chat,
        kinds.CHAT_ACKNOWLEDGE: _acknowledged,
        kinds.CHAT_CANCEL: _chat_cancelled,
        kinds.REASONING_START: _turn_started,
        kinds.REASONING_CONCLUSION: _turn_ended,
        kinds.SYSTEM_PRESENCE: _presence_changed,
    }
    follows: ClassVar = tuple(_HANDLERS)

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
