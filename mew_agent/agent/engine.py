"""Engines answer the chats of an agent: our own conversation, a third-party program, a library.

Owns the interface between an agent and its engine. Inbox, addressing, turns, loop guard, budgets, approvals,
staggering, held chats and status belong to the agent (see `AgentRuntime`). An engine answers, compacts, clears, and
knows its figures. It refuses unsupported requests with a reason (see `Controllable`).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from mew_protocol.context_report import QueuedMessages, SenderSpending, Waiting, answer_reserve_tokens
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.chat import MAIN_SESSION, RESPONSE_FORMAT_UNSUPPORTED, SESSIONS_UNSUPPORTED
from mew_protocol.payloads.read_receipts import ReceiptBasis, ReceiptEvent
from mew_protocol.payloads.system import SpaceFacts
from mew_protocol.payloads.text_fit import Delivery, Fit, fit_in
from mew_protocol.status_word import StatusWord

from mew_agent.context.message_facts import MessageKey
from mew_agent.context.store import ChatRefusal, InboxChange, StoredChat
from mew_agent.conversation.conversation_events import ConversationEvent
from mew_agent.conversation.message_forms import NOT_HELD, Holding, ReadRecord
from mew_agent.participant.compaction_driver import CompactionDriver
from mew_agent.participant.participant import Participant
from mew_agent.participant.reasoning_stream import Reasoning
from mew_agent.tokens.projection import Calibration
from mew_agent.tokens.sizes import Size, Sizes, basis_of


class Surroundings(Protocol):
    """The part of an agent's report that is not about a context: its waits, its unread chats, and its spending."""

    waiting: tuple[Waiting, ...]
    queued: QueuedMessages | None
    spent_for: tuple[SenderSpending, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSide:
    """The functions of the agent that its engine and the answers call.

    `receive_event` handles an event of a context. `chats` returns the chats of the running turn, the question
    first. `let_in` adds waiting chats to that turn between two steps. `count_queued` measures the waiting chats
    again. `prompt_read` notes that a model read these messages, for engines without a history of their own.
    """

    receive_event: Callable[[ConversationEvent], Awaitable[None]]
    chats: Callable[[], Sequence[StoredChat]]
    let_in: Callable[[], Awaitable[None]]
    count_queued: Callable[[], Awaitable[None]]
    prompt_read: Callable[[Sequence[Envelope]], Awaitable[None]]
    may_session_compact: Callable[[], Awaitable[bool]]


class Answering(ABC):
    """Makes one answer. The agent calls the methods in the order of this class."""

    model: str | None = None
    """The model and the session, for tracing."""
    session: str | None = None
    max_seconds: float = math.inf
    """How long `make` may take."""
    reads_remarks = True
    """Whether chats kept as context enter before the question."""
    last_thought: Mapping[str, Any] | None = None
    """The thought that precedes the conclusion of an answer; None for none."""
    failure: str | None = None
    """The name of the error that ended the turn."""
    problem: str | None = None
    """Why the answer reports a failure."""

    @property
    def spent(self) -> tuple[int, int]:
        """The tokens that the engine's calls reported so far, and the number of calls without a report."""
        return 0, 0

    async def add_remark(self, remark: Envelope, removed: InboxChange) -> bool:
        """Add a chat as context only. Returns whether the removal of `removed` is stored in the same step."""
        return False

    async def begin(self, question: StoredChat, *, was_begun: bool) -> tuple[int, int]:
        """Begin the turn, or continue one of an earlier process. Returns its number and its first item's `seq`.

        Waits for peers and servers that the answer needs.
        """
        return 0, 0

    @abstractmethod
    async def make(self) -> str:
        """Return the answer. Cancelling the turn cancels this call."""

    async def timed_out(self) -> str:
        """Return the answer to send after `max_seconds`, or raise an error for `failed`."""
        raise TimeoutError(f"no answer within {self.max_seconds:g} seconds")

    async def failed(self, error: Exception) -> str | ChatRefusal:
        """Return the answer to send after `make` failed, or a refusal; or raise the error."""
        raise error

    async def end(self) -> None:
        """Clean up after `make`, even after a failure. Runs uncancelled."""

    async def report(self, question: StoredChat) -> dict[str, Any]:
        """Return further keys of the answer's payload."""
        return {}

    async def finish(self, *, is_idle: bool) -> None:
        """Do the work that follows a confirmed answer, such as a compaction. `is_idle`: no other chat waits."""

    def cancel(self) -> None:
        """Note that the turn was cancelled, so that no work follows the answer."""


class Engine(ABC):
    """Answers for one agent. The defaults fit an engine with an `ExternalContext`."""

    deliveries: Sequence[Delivery] = ("anyway", "cancel")
    """How it can read a chat that does not fit."""
    shares_turns = False
    """Whether a turn can answer several chats, also those that arrive during it."""

    def __init__(self, me: Participant, compact_at_percent: int | None = None) -> None:
        self.me, self.external = me, me.external_context
        self.external.compact_at_percent = compact_at_percent
        self.surroundings: Surroundings = self.external
        """The part of the engine's reports that the agent sets."""
        self.sizes = Sizes()

    @property
    def compacting(self) -> CompactionDriver:
        """Runs the compactions."""
        return self.external.compacting

    # -- lifetime ----------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Load the state of an earlier process. Called before joining."""

    async def run(self) -> None:
        """Work while the agent is joined. Called after the first welcome."""

    def joined(self, facts: SpaceFacts) -> StatusWord | None:
        """Read the space's instructions to all agents. Returns the status to announce; None: the default one."""
        self.external.restart_after(self.me.peers.last_context(self.me.id))
        return None

    async def aclose(self) -> None:
        """Close stores and programs."""

    # -- answers -----------------------------------------------------------------------------------------

    @abstractmethod
    async def answering(self, question: StoredChat, reasoning: Reasoning) -> Answering:
        """Return the object that answers a chat; `reasoning` shows its work to peers."""

    agent: AgentSide
    """The runtime that is created with this engine sets it."""

    def refusal(self, chat: Envelope) -> ChatRefusal | None:
        """Return why this engine cannot answer a chat as requested; None if it can."""
        if chat.body.get("response_format") is not None:
            return ChatRefusal("the agent's own program takes no response_format", RESPONSE_FORMAT_UNSUPPORTED)
        if chat.body.get("session") in (None, MAIN_SESSION):
            return None
        return ChatRefusal("the agent's own program keeps one conversation, and no sessions", SESSIONS_UNSUPPORTED)

    # -- receipts ----------------------------------------------------------------------------------------

    receipt_basis: ReceiptBasis = "agent_prompt"
    """How it is known which messages were read."""

    async def holding(self, read: ReadRecord, key: MessageKey, session: str | None) -> Holding:
        """Return the form of a message in the context, according to its record."""
        entry = (await read()).newest
        if entry is None or entry.call is None:
            return NOT_HELD
        events = [ReceiptEvent(what="in_prompt", at=entry.call.at, call=entry.call.number)]
        if entry.form is not None and entry.form != "whole":
            events.append(ReceiptEvent(what=entry.form, at=entry.form_at))
        reason = "the agent compacted its context itself" if entry.form == "unknown" else None
        return Holding(entry.form or "whole", entry.call, reason=reason, events=tuple(events))

    # -- figures -----------------------------------------------------------------------------------------

    @property
    def calibration(self) -> Calibration:
        """The calibration that turns text sizes into tokens."""
        return _UNCALIBRATED

    def has_room(self, size: Size) -> bool:
        """Return True if a text of this size fits with all queued chats; False if `fit` has to decide."""
        return False

    def fit(self, size: Size) -> Fit:
        """Return whether a text of this size fits with all queued chats."""
        tokens = self.calibration.wrap(size.tokens(self.calibration))
        fit = fit_in(self.external.status(), tokens, basis_of((size,), self.calibration))
        if fit.max_tokens is None:
            return fit
        largest = fit.max_tokens - answer_reserve_tokens(fit.max_tokens)
        is_possible = None if fit.fits is not False else tokens <= largest
        return fit.model_copy(update={"largest_tokens": largest, "fits_after_compaction": is_possible})

    def has_read(self, chat: StoredChat) -> bool:
        """Return whether the chat being answered is already in the context."""
        return False


_UNCALIBRATED: Final = Calibration()
