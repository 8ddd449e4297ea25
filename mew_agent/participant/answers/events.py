"""An agent's answer for a program to read: typed pieces as they come, or the whole of it.

Owns the pieces. The order, and that no text comes twice, is `answer`'s business; nothing here knows the wire.
"""

from collections.abc import AsyncIterator, Generator
from dataclasses import dataclass
from typing import Any

from mew_agent.participant.answers.asking import Exchanges
from mew_agent.participant.answers.assembly import Answer, Delta
from mew_agent.participant.peers import PeerContext


@dataclass(frozen=True, slots=True)
class Thinking:
    """A piece of what is thought and said on the way, which is not the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Writing:
    """A piece of the answer. All of them together are the answer, unless the agent took back what it wrote."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """The agent's model called a tool; `arguments` are the JSON that it wrote."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Noticed:
    """Something happened to the agent's context meanwhile, such as a compaction; in words for people."""

    text: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer. `context` is how full the agent's window is by the report it had made when it answered."""

    text: str
    sender: str
    context: PeerContext


AnswerPiece = Thinking | Writing | ToolCalled | Noticed | Answered


class Pieces:
    """Puts an answer together as pieces, all but the last."""

    def __init__(self, *, may_use_tools: bool) -> None:
        self._answer = Answer(notices="off", may_use_tools=may_use_tools)

    @property
    def text(self) -> str:
        """The answer, once it is finished."""
        return self._answer.text

    @property
    def notices(self) -> list[str]:
        """What was told about the agent itself."""
        return self._answer.notices

    def token(self, text: str) -> list[AnswerPiece]:
        """A piece of text of the running model call."""
        return _typed(self._answer.token(text))

    def whole(self, text: str) -> list[AnswerPiece]:
        """The text of a call at once, by an agent that could not stream it."""
        return _typed(self._answer.whole(text))

    def expect_tools(self, *, is_likely: bool) -> None:
        """The agent said, before its first call, whether its model has tools."""
        self._answer.expect_tools(is_likely=is_likely)

    def thinking(self, text: str) -> list[AnswerPiece]:
        """A piece of what a reasoning model thinks."""
        return _typed(self._answer.thinking(text))

    def tool_call(self, name: str, arguments: str, *, call_id: str = "", remark: str = "") -> list[AnswerPiece]:
        """The running call ended in a tool call; what was said before it was no answer."""
        lines = _typed(self._answer.tool_call(name, arguments, call_id=call_id, remark=remark))
        # The last line is the call's own; none at all: the call is known already.
        return [*lines[:-1], ToolCalled(name, arguments)] if lines else []

    def notice(self, text: str) -> list[AnswerPiece]:
        """Something about the agent itself."""
        self._answer.notice(text)
        return [Noticed(text)]

    def begin_again(self, why: str) -> list[AnswerPiece]:
        """The running call was cut and is made again: what it wrote so far is no answer."""
        known = len(self.notices)
        thinking = _typed(self._answer.begin_again(why))
        return [*thinking, *(Noticed(one) for one in self.notices[known:])]

    def finish(self, text: str) -> list[AnswerPiece]:
        """The final chat: what of it was not shown yet."""
        return _typed(self._answer.finish(text))

    def close(self) -> list[AnswerPiece]:
        """No final chat comes."""
        return _typed(self._answer.close())


class Asking:
    """A question that is asked when it is awaited, or read with `async for`; each time anew."""

    def __init__(self, exchanges: Exchanges, agent: str, text: str, silence_seconds: float) -> None:
        self._exchanges = exchanges
        self._agent = agent
        self._text = text
        self._silence_seconds = silence_seconds

    async def __aiter__(self) -> AsyncIterator[AnswerPiece]:
        pieces = Pieces(may_use_tools=self._exchanges.may_use_tools(self._agent))
        async with self._exchanges.open(
            self._agent, self._text, pieces, silence_seconds=self._silence_seconds
        ) as exchange:
            while (piece := await exchange.next()) is not None:
                yield piece
        yield Answered(pieces.text, self._agent, exchange.context)

    def __await__(self) -> Generator[Any, Any, Answered]:
        return self._to_the_end().__await__()

    async def _to_the_end(self) -> Answered:
        last: AnswerPiece | None = None
        async for piece in self:
            last = piece
        assert isinstance(last, Answered)  # all other ends raise
        return last


def _typed(deltas: list[Delta]) -> list[AnswerPiece]:
    return [Writing(one.text) if one.part == "content" else Thinking(one.text) for one in deltas]
