"""One question of a chat client on its way through the space, until its answer is read.

Owns the waiting: pieces as they become ready, the end, and the bound on an agent's silence. Which envelope belongs
to it is decided in `listening`.
"""

from collections import deque
from dataclasses import dataclass, field

import anyio

from mew_agent.chat_api.answer import Answer, Delta
from mew_agent.chat_api.problems import TIMED_OUT, Problem
from mew_agent.chat_api.usage import CallUsage
from mew_agent.peers import PeerContext


@dataclass
class Exchange:
    """One question and its answer on the way. Read `next` until it returns None."""

    agent: str
    chat_id: str
    text: str
    answer: Answer
    usage: CallUsage
    silence_seconds: float
    context: PeerContext
    """The agent's last status; of the moment of its answer, once that is there."""
    reasoning_id: str | None = None
    is_queued: bool = False
    is_over: bool = False
    is_to_be_stopped: bool = True
    """Whether the agent may still be at work for it."""
    problem: Problem | None = None
    _ready: deque[Delta] = field(default_factory=deque)
    _changed: anyio.Event = field(default_factory=anyio.Event)
    deadline: float = 0.0
    """When silence has lasted too long, by the event loop's clock."""

    def __post_init__(self) -> None:
        self.sign_of_life()

    async def next(self) -> Delta | None:
        """The next piece, or None at the end. Raises the `Problem` that ended it otherwise."""
        while not self._ready:
            if self.problem is not None:
                raise self.problem
            if self.is_over:
                return None
            changed = self._changed
            left = self.deadline - anyio.current_time()
            if left <= 0:
                self.fail(self._silence(), is_to_be_stopped=True)
                continue
            with anyio.move_on_after(left):
                await changed.wait()
        return self._ready.popleft()

    def is_about(self, context: object) -> bool:
        """Whether this names the reasoning for our question."""
        return self.reasoning_id is not None and context == self.reasoning_id

    def put(self, deltas: list[Delta]) -> None:
        """More of the answer is there."""
        self._ready += deltas
        self._wake()

    def begin(self, reasoning_id: str | None) -> None:
        """The agent works on it now."""
        if self.reasoning_id is None:
            self.usage.begin(self.context)
        self.reasoning_id = reasoning_id or self.reasoning_id
        self.is_queued = False
        self.sign_of_life()

    def end(self, text: str) -> None:
        """The agent has answered."""
        if not self.is_over:
            self.is_over, self.is_to_be_stopped = True, False
            self.put(self.answer.finish(text))

    def fail(self, problem: Problem, *, is_to_be_stopped: bool = False) -> None:
        """There will be no answer."""
        if not self.is_over:
            self.is_over, self.problem = True, problem
            self.is_to_be_stopped = is_to_be_stopped
            self.put(self.answer.close())

    def sign_of_life(self) -> None:
        """The agent is at work on it."""
        self.deadline = anyio.current_time() + self.silence_seconds

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def _silence(self) -> Problem:
        why = " (it is paused)" if self.context.status.startswith("paused") else ""
        return Problem(
            TIMED_OUT,
            "agent_silent",
            f"'{self.agent}' showed no sign of working on this for {self.silence_seconds:g} seconds{why}",
        )
