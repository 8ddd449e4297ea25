"""What others learn of a program whose event handlers fail: the sender of a chat, and the people of the space.

Owns the refusal of a chat that nothing answered, and the status that shows the failure until the same handler succeeds.
`Listeners` calls the handlers. Handlers of controls are not events; `Control` answers those.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.status_word import StatusWord, status_word

from mew_agent.participant.controls import Control
from mew_agent.participant.external_context import ExternalContext
from mew_agent.participant.listeners import Handler
from mew_agent.participant.messenger import Messenger

MAX_REASON_CHARS: Final = 300


@dataclass(eq=False)
class HandlerFailures:
    """Follows what the handlers of one participant return or raise. `answers_chats` is false if other code does."""

    messenger: Messenger
    control: Control
    context: ExternalContext
    answers_chats: bool
    _failing: dict[int, StatusWord] = field(default_factory=dict)  # by the id of the handler, which may not be hashable

    def handled(self, envelope: Envelope | None, outcomes: Sequence[tuple[Handler, Exception | None]]) -> None:
        """Note what the handlers of one arrival did, in the order in which they were called."""
        if self.messenger.session.client.is_ending:
            return
        errors = [one for _, one in outcomes if one is not None]
        if errors and envelope is not None and self._expects_answer(envelope):
            problem = f"its program failed: {_in_short(errors[0])}"
            self.messenger.session.start_soon(self.messenger.refuse_chat, envelope, problem, "program_failed")
        if envelope is not None and envelope.sender == self.messenger.id:
            return  # our own status must not cause the next one
        is_status = envelope is not None and envelope.kind == kinds.PARTICIPANT_STATUS
        before = tuple(self._failing)
        for handler, error in sorted(outcomes, key=lambda one: one[1] is not None):
            if error is None:
                self._failing.pop(id(handler), None)
            else:
                name = getattr(handler, "__name__", type(handler).__name__)
                self._failing.setdefault(id(handler), status_word("handler_failed", f"{name}: {_in_short(error)}"))
        self.context.failing = next(reversed(self._failing.values()), None)
        is_new = any(one not in before for one in self._failing)
        # Statuses alone never announce an end: two programs would answer each other's for ever.
        if is_new or (len(self._failing) < len(before) and not is_status):
            self.messenger.session.start_soon(self.control.announce, self.context.failing)

    def _expects_answer(self, chat: Envelope) -> bool:
        """Return whether its sender may be waiting for a chat of ours, which nothing sent."""
        return (
            self.answers_chats
            and chat.kind == kinds.CHAT
            and chat.sender != self.messenger.id
            and chat.names(self.messenger.id)
            and not chat.correlation_ids
            and chat.body.get("needs_reply") is not False
            and chat.id not in self.messenger.answered_chats
        )


def _in_short(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:  # of a task group
        error = error.exceptions[0]
    line = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".:")
    return line if len(line) <= MAX_REASON_CHARS else f"{line[:MAX_REASON_CHARS]}..."
