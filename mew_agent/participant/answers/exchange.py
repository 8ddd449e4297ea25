"""One question to an agent and the answer to it, from the sent chat until the answer is read.

Owns the waiting: events as they become ready, the end, and the inactivity timeout. Which envelope belongs to which
exchange is decided in `router`.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio
from mew_protocol.payloads.chat import MAIN_SESSION, TurnReport

from mew_agent.errors import NoAnswer
from mew_agent.participant.answers.builder import AnswerBuilder, AnswerEvent
from mew_agent.participant.answers.context_notes import CallUsage, ContextNotes, approval_text
from mew_agent.participant.peers import PeerContext

RETURN_SECONDS = 60.0
"""How long an agent that left may take to return, if the inactivity timeout is not shorter."""


@dataclass
class Exchange:
    """A question and its answer so far. Read `next_event` until it returns None."""

    agent: str
    chat_id: str
    text: str
    answer: AnswerBuilder
    inactivity_seconds: float
    context: PeerContext
    """The last status of the agent, or of its session; once the answer is there, the status at that time."""
    session: str | None = None
    turn: TurnReport | None = None
    """What the agent says of its answer; None from an agent without sessions."""
    reasoning_id: str | None = None
    answer_id: str | None = None
    """The id of the chat that answered."""
    is_queued: bool = False
    is_over: bool = False
    needs_cancel: bool = True
    """Whether the agent may still be working on it."""
    is_agent_absent: bool = False
    failure: NoAnswer | None = None
    deadline: float = 0.0
    """When the inactivity timeout ends, by the event loop's clock."""
    usage: CallUsage = field(init=False)
    _notes: ContextNotes = field(init=False)
    _ready: deque[AnswerEvent] = field(default_factory=deque)
    _changed: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self) -> None:
        self.usage, self._notes = CallUsage(self.context), ContextNotes(self.context)
        self.extend_deadline()

    async def next_event(self) -> AnswerEvent | None:
        """Return the next event, or None at the end. Raises the `NoAnswer` that ended it otherwise."""
        while not self._ready:
            if self.failure is not None:
                raise self.failure
            if self.is_over:
                return None
            changed = self._changed
            remaining = self.deadline - anyio.current_time()
            if remaining <= 0:
                code, why = "agent_silent", " (it is paused)" if self.context.is_paused else ""
                if self.context.status == "waiting_for_approval":
                    why = f" ({approval_text(self.context)})"
                problem = f"'{self.agent}' showed no activity for {self.inactivity_seconds:g} seconds{why}"
                if self.is_agent_absent:
                    code, problem = "agent_left", f"'{self.agent}' left the space before it answered"
                self.fail(code, problem, needs_cancel=True)
                continue
            with anyio.move_on_after(remaining):
                await changed.wait()
        return self._ready.popleft()

    @property
    def has_own_session(self) -> bool:
        """Whether the question is asked in a session, and not in the agent's own conversation."""
        return self.session not in (None, MAIN_SESSION)

    def is_about(self, context: object) -> bool:
        """Return whether an envelope's `context` names the reasoning about this question."""
        return self.reasoning_id is not None and context == self.reasoning_id

    def add(self, events: Sequence[AnswerEvent]) -> None:
        """Add events and wake the reader."""
        self._ready += events
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def update_session(self, context: PeerContext) -> None:
        """Read the status of the session, and add what it announces."""
        self.context = context
        if (note := self._notes.update(context)) is not None:
            self.extend_deadline()
            self.add(self.answer.add_notice(note.text))

    def begin(self, reasoning_id: str | None) -> None:
        """Record that the agent has begun to work on it."""
        if self.reasoning_id is None:
            self.usage.begin(self.context)
        self.reasoning_id = reasoning_id or self.reasoning_id
        self.is_queued = False
        self.extend_deadline()

    def agent_left(self) -> None:
        """Wait a shorter time for an agent that left: one that was killed returns and answers."""
        if self.inactivity_seconds == math.inf:
            return
        self.is_agent_absent = True
        self.deadline = min(self.deadline, anyio.current_time() + RETURN_SECONDS)
        self.add(self.answer.add_notice(f"'{self.agent}' left the space; waiting for its return"))

    def agent_restarted(self) -> None:
        """Begin the answer again: the agent's process was restarted and continues with the question."""
        self.reasoning_id = None
        self.extend_deadline()
        self.add(self.answer.restart_agent())

    def finish(self, text: str, answer_id: str | None = None, turn: TurnReport | None = None, at: str = "") -> None:
        """Record the agent's answer; `at` is when it was sent, as on the wire."""
        if not self.is_over:
            self.answer_id, self.turn = answer_id, turn
            if turn is not None and turn.status is not None:
                self.context = PeerContext.from_status(turn.status, at)
            self.is_over, self.needs_cancel = True, False
            self.add(self.answer.finish(text))

    def fail(self, code: str, problem: str, *, needs_cancel: bool = False) -> None:
        """End without an answer; `code` as in `NoAnswer`."""
        if not self.is_over:
            self.is_over, self.failure = True, NoAnswer(self.agent, code, problem)
            self.needs_cancel = needs_cancel
            self.add(self.answer.close())

    def extend_deadline(self) -> None:
        """Restart the inactivity timeout: the agent shows activity."""
        self.is_agent_absent = False
        self.deadline = anyio.current_time() + self.inactivity_seconds
