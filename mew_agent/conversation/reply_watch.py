"""Follows a running reply: the size that the context reaches, and when its policy has to decide about it.

The size is a projection. A server that can count is asked repeatedly, up to a bound, and always before the
policy acts on a projection. Does not know what the policy decides.
"""

from collections.abc import Awaitable, Callable
from typing import Literal

from mew_agent.conversation import events
from mew_agent.conversation.context_state import ContextState
from mew_agent.conversation.model_calls import ReplyListener
from mew_agent.model.interface import ModelEvent, ReasoningDelta, TextDelta
from mew_agent.tokens.projection import StreamProjection

COUNT_PART = 20
"""The server counts again when 1/20 of the window is only projected, or where the policy would act."""

FEWEST_TOKENS = 16
"""Where the policy would act on fewer projected tokens than these, the server does not count again."""

MAX_COUNTS = 40
"""Limit of counts for one reply."""

CountText = Callable[[str], Awaitable[int | None]]
SizeBasis = Literal["server_counted", "projected"]
Decide = Callable[[int, int, SizeBasis], Awaitable[None]]


class ReplyWatch:
    """Follows one reply. After each piece of text, `decide` gets the size, the largest likely one, and the basis.

    `count_text` asks the server for the tokens of a text; it returns None if the server cannot count.
    """

    def __init__(self, listener: ReplyListener, state: ContextState, count_text: CountText, decide: Decide) -> None:
        tracker = state.tracker
        self._listener, self._events, self._count_text, self._decide = listener, state.events, count_text, decide
        self._limit_tokens = tracker.limit_tokens
        self._prompt_tokens = self._counted_tokens = tracker.next_prompt.tokens
        self._projection = StreamProjection(
            self._prompt_tokens, self._limit_tokens, tracker.ledger.calibration, state.sizes.count
        )
        marks = tracker.policy.rule_index.marks(self._limit_tokens).interventions.get("stream", ())
        self._acts_at_tokens = min((at for _, at in marks if at), default=None)
        self._pieces: list[str] = []
        self._counts_left = MAX_COUNTS

    async def receive(self, event: ModelEvent) -> None:
        """Pass an event on, and follow its text. Raises what `decide` raises."""
        await self._listener(event)
        if not isinstance(event, TextDelta | ReasoningDelta):
            return
        self._pieces.append(event.text)
        tokens = self._projection.add(event.text)
        basis: SizeBasis = "projected"
        if self._is_count_due(tokens) and await self._count():
            tokens, basis = self._counted_tokens, "server_counted"
        if self._projection.crosses_step(tokens):
            notice = events.ReplyNotice("size", tokens=tokens, max_tokens=self._limit_tokens, basis=basis)
            await self._events.emit(notice)
        await self._decide(tokens, self._projection.likely_most_tokens, basis)

    def _is_count_due(self, tokens: int) -> bool:
        most = self._projection.likely_most_tokens
        if self._limit_tokens is None or not self._counts_left or most == tokens:  # a tokenizer counts already
            return False
        projected = most - self._counted_tokens
        acts = self._acts_at_tokens is not None and most >= self._acts_at_tokens and projected >= FEWEST_TOKENS
        return acts or projected * COUNT_PART >= self._limit_tokens

    async def _count(self) -> bool:
        """Let the server count the reply so far. Returns whether it did."""
        counted = await self._count_text("".join(self._pieces))
        self._counts_left = 0 if counted is None else self._counts_left - 1
        if counted is not None:
            self._counted_tokens = self._prompt_tokens + counted
            self._projection.restart(self._counted_tokens)
        return counted is not None
