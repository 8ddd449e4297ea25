"""One question to an agent on its way through the space, until its answer is read.

Owns the waiting: pieces as they become ready, the end, and the bound on an agent's silence. Which envelope belongs
to it is decided in `listening`.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import anyio

from mew_agent.errors import NoAnswer
from mew_agent.participant.answers.usage import CallUsage
from mew_agent.participant.peers import PeerContext

P = TypeVar("P")


class Assembly(Protocol[P]):
    """What an answer is put together as. Every method returns the pieces that it makes ready, in order."""

    @property
    def text(self) -> str:
        """The answer, once it is finished."""
        ...

    @property
    def notices(self) -> list[str]:
        """What was told about the agent itself."""
        ...

    def token(self, text: str) -> list[P]:
        """A piece of text of the running model call."""
        ...

    def whole(self, text: str) -> list[P]:
        """The text of a call at once, by an agent that could not stream it."""
        ...

    def expect_tools(self, *, is_likely: bool) -> None:
        """The agent said, before its first call, whether its model has tools."""
        ...

    def thinking(self, text: str) -> list[P]:
        """A piece of what a reasoning model thinks."""
        ...

    def tool_call(self, name: str, arguments: str, *, call_id: str = "", remark: str = "") -> list[P]:
        """The running call ended in a tool call; `arguments` are JSON, `remark` is what it said before."""
        ...

    def notice(self, text: str) -> list[P]:
        """Something about the agent itself."""
        ...

    def begin_again(self, why: str) -> list[P]:
        """The running call was cut and is made again: what it wrote so far is no answer."""
        ...

    def finish(self, text: str) -> list[P]:
        """The final chat."""
        ...

    def close(self) -> list[P]:
        """No final chat comes."""
        ...


@dataclass
class Exchange(Generic[P]):
    """One question and its answer on the way. Read `next` until it returns None."""

    agent: str
    chat_id: str
    text: str
    answer: Assembly[P]
    usage: CallUsage
    silence_seconds: float
    context: PeerContext
    """The agent's last status; of the moment of its answer, once that is there."""
    reasoning_id: str | None = None
    is_queued: bool = False
    is_over: bool = False
    is_to_be_stopped: bool = True
    """Whether the agent may still be at work for it."""
    problem: NoAnswer | None = None
    _ready: deque[P] = field(default_factory=deque)
    _changed: anyio.Event = field(default_factory=anyio.Event)
    deadline: float = 0.0
    """When silence has lasted too long, by the event loop's clock."""

    def __post_init__(self) -> None:
        self.sign_of_life()

    async def next(self) -> P | None:
        """The next piece, or None at the end. Raises the `NoAnswer` that ended it otherwise."""
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

    def put(self, pieces: list[P]) -> None:
        """More of the answer is there."""
        self._ready += pieces
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

    def fail(self, problem: NoAnswer, *, is_to_be_stopped: bool = False) -> None:
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

    def _silence(self) -> NoAnswer:
        why = " (it is paused)" if self.context.status.startswith("paused") else ""
        return NoAnswer(
            self.agent,
            "agent_silent",
            f"'{self.agent}' showed no sign of working on this for {self.silence_seconds:g} seconds{why}",
        )
