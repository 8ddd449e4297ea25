"""The events of a conversation, and their delivery to listeners in the same process.

Does not know any listener. Peers learn the same facts from `participant/status`.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import ClassVar, Literal

from mew_protocol.context_report import Basis
from mew_protocol.payloads.participant import Status
from mew_protocol.status_word import StatusWord

from mew_agent.context.message_facts import Cause
from mew_agent.context.policy import Suggestion


@dataclass(frozen=True, slots=True)
class LevelChanged:
    """The context has a new level, possibly `unknown`. Tokens are as reported, None if not known."""

    before: str
    after: str
    severity: int | None
    tokens: int | None
    max_tokens: int | None
    basis: Basis


@dataclass(frozen=True, slots=True)
class RedlineApproached:
    """The context entered the last level before the redline."""

    used_tokens: int | None
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class RedlineCrossed:
    """The window is full by the policy's measure."""

    used_tokens: int | None
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class SavingSuggested:
    """A way to save tokens became available."""

    suggestion: Suggestion


@dataclass(frozen=True, slots=True)
class ContextCleared:
    """The context was emptied. `tokens` is the size before, None if not known."""

    tokens: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class ContextCompacted:
    """A compaction ended. Tokens before and after, None if not known."""

    tokens_before: int | None
    tokens_after: int | None
    trigger: str


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """Peers should receive this status. `word` is its status word; None for the default.

    It refers to the envelopes `about`.
    """

    status: Status
    word: StatusWord | None = None
    about: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ItemAdded:
    """An item that the model did not write was added to the history."""

    seq: int


@dataclass(frozen=True, slots=True)
class PromptRead:
    """The model began to answer a main call, so it has read the prompt."""

    cause: ClassVar[Cause] = "read"
    """The change for followers of receipts."""

    number: int


@dataclass(frozen=True, slots=True)
class HistoryChanged:
    """Items left the history or returned to it. `revision` is the new one."""

    cause: ClassVar[Cause] = "context"
    """The change for followers of receipts."""

    revision: int


@dataclass(frozen=True, slots=True)
class ResultCut:
    """A tool result would overflow the context, so `omitted_tokens` of it (projected) stay outside."""

    tool: str
    omitted_tokens: int


@dataclass(frozen=True, slots=True)
class ReplyNotice:
    """A notice about a running reply, for people: a compaction, its end, or the size of the context.

    The kind `size` has figures and no text; `basis` says how `tokens` are known.
    """

    kind: Literal["size", "compacting", "compacted", "not_compacted", "aborted"]
    text: str = ""
    tokens: int | None = None
    max_tokens: int | None = None
    basis: str | None = None

    def values(self) -> dict[str, object]:
        """Return everything but the kind, without empty fields."""
        return {key: value for key, value in asdict(self).items() if key != "kind" and value not in (None, "")}


ContextEvent = LevelChanged | RedlineApproached | RedlineCrossed | SavingSuggested | ContextCleared | ContextCompacted
"""The events that programs may subscribe to; see `Agent.on_context_event`."""

ConversationEvent = ContextEvent | StatusChanged | ItemAdded | PromptRead | HistoryChanged | ResultCut | ReplyNotice

EventListener = Callable[[ConversationEvent], Awaitable[None]]


class ConversationEvents:
    """Delivers each event to every listener, in the order of subscription. An error of a listener is raised to the
    emitter.
    """

    def __init__(self) -> None:
        self._listeners: list[EventListener] = []

    def subscribe(self, listener: EventListener) -> None:
        """Deliver all later events to this listener. It must return soon: the conversation waits for it."""
        self._listeners.append(listener)

    @contextmanager
    def subscribed(self, listener: EventListener) -> Iterator[None]:
        """Deliver events to this listener while the block runs."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    async def emit(self, event: ConversationEvent) -> None:
        """Deliver an event and wait until every listener has handled it."""
        for listener in tuple(self._listeners):
            await listener(event)
