"""Carries out a compaction plan: gets the summary from a model, checks it, and applies the plan.

Nothing changes before the summary is accepted. Does not know envelopes or policies.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import anyio
import anyio.to_thread

from mew_agent.compaction.checks import SummarySource, problem_of
from mew_agent.compaction.completion import completed_summary
from mew_agent.compaction.extract import Extract, extract
from mew_agent.compaction.planner import CompactionPlan
from mew_agent.compaction.summary import (
    SECTIONS,
    ClosingRequest,
    RejectedSummary,
    cleaned,
    clipped,
    summary_messages,
    transcript_entry,
    with_true_citations,
)
from mew_agent.context.cuts import CountedCut, CutOutcome
from mew_agent.context.history import History, Item, Summary, summary_text
from mew_agent.context.item_sizes import kept_reply_tokens
from mew_agent.context.tracker import Tracker
from mew_agent.errors import ContextOverflow, ModelError
from mew_agent.model.interface import ModelReply, ModelRequest
from mew_agent.model.usage import Usage
from mew_agent.tokens.projection import features, most_tokens

logger = logging.getLogger("mew_agent.compaction")

INPUT_SHARE = (7, 10)
"""Share of the room left by instructions and answer that the material may fill; the rest absorbs projection errors."""

CLOSING_SHARE = (19, 20)
"""Share of the window that the conversation with a request for its summary, and the summary, may fill together."""

SUMMARY_TIMEOUT_SECONDS = 60.0
TOKENS_PER_SECOND = 1000  # speed of a slow server; a longer conversation adds to the timeout at this rate

THINKING_TOKENS = 4096
"""Added to the limit of a summary by a model that thinks, at most an eighth of the window: most providers count the
thoughts in the limit."""

MIN_ROOM_TOKENS = 64

MAX_HALVINGS = 4
MIN_CLIPPED_CHARS = 200
SummaryCall = Callable[[ModelRequest], Awaitable[ModelReply]]  # makes one summary call
PieceStarted = Callable[[int, int], Awaitable[None]]  # called with the finished and the expected number of pieces


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """Result of a compaction: the recorded outcome, the removed items, and the notes that replace cleared results."""

    outcome: CutOutcome
    evicted: tuple[Item, ...]
    stubs: tuple[Item, ...]


async def write_summary(
    plan: CompactionPlan,
    tracker: Tracker,
    call: SummaryCall,
    *,
    conversation: ModelRequest | None = None,
    timeout_seconds: float = SUMMARY_TIMEOUT_SECONDS,
    may_extract: bool = True,
    may_recall: bool = True,
    piece_started: PieceStarted | None = None,
) -> Summary | None:
    """Write the summary that a plan needs; None if it needs none.

    `conversation` is the request with everything up to the last item that leaves. The first attempt adds one message to
    it, so that a provider with a prompt cache reads only that message. Without `conversation`, if it would not fit, or
    for a second attempt, the request is a transcript.

    All calls together take at most `timeout_seconds`, plus 1 second for each `TOKENS_PER_SECOND` tokens that the
    summary replaces. If the model writes no acceptable summary in that time, the extract replaces it, unless
    `may_extract` is off. Raises `RejectedSummary` or a `ModelError` without either. A transcript that is too long for
    one call is summarised in pieces; `piece_started` is called before each. With `may_recall`, the model has the tool
    `recall`, and the summary lists words that find the omitted facts.
    """
    if plan.evict is None or not plan.summary_budget_tokens:
        return None
    history, writer = (
        tracker.history,
        _SummaryWriter(tracker, call, plan.summary_budget_tokens, piece_started, may_recall),
    )
    items, (_, last) = plan.leaving(history.items), plan.evict
    writer.staying = [item for item in history.items if item.seq > last and item.seq not in plan.stub_seqs]
    writer.is_thinking = has_thought("", tracker.measurement.usage) or any(item.thinking for item in history.items)
    previous, revision = history.summary, history.revision
    replaced_tokens = plan.evicted_tokens + tracker.ledger.preamble.summary_tokens
    bound = timeout_seconds + replaced_tokens / TOKENS_PER_SECOND
    summary: Summary | None = None
    problem: ModelError | RejectedSummary = RejectedSummary(f"the summary was not complete after {bound:.3g} seconds")
    try:
        with anyio.move_on_after(bound):
            found = None if conversation is None else await writer.from_conversation(conversation, items, previous)
            if not isinstance(found, Summary):
                found = await writer.from_transcript(items, previous, problem=found)
            summary = found
            _refuse_growth(summary, replaced_tokens, tracker)
    except (ModelError, RejectedSummary) as error:
        summary, problem = None, error
    if history.revision != revision:
        raise RejectedSummary("the history changed while the summary was written")
    if summary is None:
        if not may_extract:
            raise problem
        summary = await writer.from_extract(items, previous, problem)
        _refuse_growth(summary, replaced_tokens, tracker)
    return summary


def apply_plan(
    plan: CompactionPlan,
    summary: Summary | None,
    tracker: Tracker,
    *,
    trigger: str,
    count: Callable[[str], int | None] = lambda _text: None,
    counted: CountedCut | None = None,
) -> CompactionResult:
    """Apply a plan: clear tool results, remove items, and set the summary in their place.

    `count` counts a short text if it can. `counted` is the server's count for the whole plan.
    """
    history, next_before = tracker.history, tracker.ledger.projected_tokens
    was_measured = tracker.measurement.includes(max((*plan.stub_seqs, *(plan.evict or ()))))
    outcomes: list[CutOutcome] = []
    stubs = history.stub(plan.stub_seqs) if plan.stub_seqs else []
    if stubs:
        counts = {item.seq: count(item.text()) for item in stubs}
        known = {seq: tokens for seq, tokens in counts.items() if tokens is not None}
        outcomes.append(tracker.stubbed(stubs, trigger=trigger, counted=known))
    evicted: list[Item] = []
    if plan.evict is not None:
        summary = history.summary if summary is None else summary
        evicted = history.evict(plan.evict[0], plan.evict[1], summary)
        size = None if summary is None else count(summary_text(summary.text))
        first, last = plan.evict
        outcomes.append(tracker.cut(first, last, trigger=trigger, freed_messages=len(evicted), summary_counted=size))
    outcome = _combined(outcomes)
    if counted is not None:
        projected = next_before - tracker.ledger.projected_tokens
        outcome = tracker.correct_cut(outcome, counted, projected_tokens=projected, was_measured=was_measured)
    return CompactionResult(outcome, tuple(evicted), tuple(stubs))


def cache_lost_tokens(plan: CompactionPlan, tracker: Tracker) -> int | None:
    """Return how many cached tokens of the last call the next one cannot use once a plan is applied.

    None if that call reported no cached tokens, or its report is no longer valid.
    """
    usage = tracker.measurement.usage
    if tracker.measurement.basis != "reported" or usage is None or usage.cached_tokens is None:
        return None
    parts, prices = tracker.ledger.parts, tracker.ledger.item_prices()
    kept = parts.prefix + parts.pins
    changed = list(plan.stub_seqs)
    if plan.evict is None:
        kept += parts.summary
    else:
        changed.append(plan.evict[0])
    kept += sum(tokens for seq, tokens in prices.items() if seq < min(changed, default=0))
    return max(0, usage.cached_tokens - kept)


def history_after(plan: CompactionPlan, summary: Summary | None, history: History) -> History:
    """Return the history that a plan leaves. Changes nothing."""
    after = replace(history, items=list(history.items))
    after.stub(plan.stub_seqs)
    if plan.evict is not None:
        after.evict(*plan.evict, history.summary if summary is None else summary)
    return after


@dataclass
class _SummaryWriter:
    """Writes one summary of at most `budget_tokens` with the calls of a model."""

    _tracker: Tracker
    _call: SummaryCall
    _budget_tokens: int
    _piece_started: PieceStarted | None
    _may_recall: bool
    staying: Sequence[Item] = ()
    """The messages behind those that leave."""
    is_thinking: bool = False
    """Whether the model has thought before a reply."""

    @property
    def _most_tokens(self) -> int:
        """The limit of a reply."""
        thinking_tokens = min(THINKING_TOKENS, self._tracker.window.max_tokens // 8) if self.is_thinking else 0
        return self._budget_tokens + thinking_tokens

    async def _reply(self, request: ModelRequest) -> ModelReply:
        reply = await self._call(replace(request, max_output_tokens=self._most_tokens))
        self.is_thinking |= has_thought(reply.reasoning_text, reply.usage)
        return reply

    async def from_conversation(
        self, conversation: ModelRequest, items: Sequence[Item], previous: Summary | None
    ) -> Summary | str | None:
        """Summarise a conversation up to the last item that leaves, by adding one message to it.

        Returns the problem with a refused summary; None if the request does not fit.
        """
        closing = ClosingRequest(items, self._budget_tokens)
        ledger, (numerator, denominator) = self._tracker.ledger, CLOSING_SHARE
        staying = sum(tokens for seq, tokens in ledger.item_prices().items() if seq > items[-1].seq)
        sent = ledger.projected_tokens - staying + self._project(closing.message.content)
        if (sent + self._most_tokens) * denominator > self._tracker.window.max_tokens * numerator:
            return None
        messages = (*conversation.messages, closing.message)
        try:
            reply = await self._reply(replace(conversation, messages=messages))
        except ContextOverflow:
            return None
        answer = replace(reply, text=closing.with_ids(reply.text))
        try:
            return await anyio.to_thread.run_sync(lambda: self._accepted(answer, items, previous))
        except RejectedSummary as rejected:
            return rejected.reason

    async def from_extract(
        self, items: Sequence[Item], previous: Summary | None, problem: ModelError | RejectedSummary
    ) -> Summary:
        """Return an extract instead of a model's summary. Raises `problem` if there is nothing to extract."""
        facts = await anyio.to_thread.run_sync(lambda: extract(items, previous.facts if previous else ()))
        summary = self.completed("", facts, items, previous)
        if not summary.text:
            raise problem
        logger.warning("no summary by a model (%s); using the extract instead", problem)
        return replace(summary, problem=str(problem))

    def _with_costs(self, items: Sequence[Item]) -> list[tuple[Item, int]]:
        return [(item, self._project(transcript_entry(item))) for item in items]

    async def _announce_piece(self, done: int, expected: int) -> None:
        """Announce a call for one of several pieces."""
        if self._piece_started is not None and expected > 1:
            await self._piece_started(done, expected)

    async def from_transcript(
        self, items: Sequence[Item], previous: Summary | None, problem: str | None = None
    ) -> Summary:
        """Summarise a transcript of at least one item in parts, each with the summary so far.

        `problem` is the reason of a first refusal; there is no third attempt.
        """
        window_tokens, budget_tokens = self._tracker.window.max_tokens, self._budget_tokens
        room = self._room(window_tokens)
        halvings = done = 0
        rest, summary = deque(await anyio.to_thread.run_sync(self._with_costs, items)), previous
        while True:
            if room < MIN_ROOM_TOKENS:
                raise RejectedSummary(f"a window of {window_tokens:,} tokens is too small to summarise in")
            part, used = self._next_part(rest, summary, room)
            await self._announce_piece(done, done + self._pieces(rest, summary, room))
            try:
                messages = summary_messages(part, summary, budget_tokens, problem)
                reply = await self._reply(ModelRequest(messages=messages))
            except ContextOverflow as overflow:
                halvings += 1
                if halvings > MAX_HALVINGS:
                    raise
                room = min(room, used) // 2
                if overflow.limit_tokens:
                    room = min(room, self._room(overflow.limit_tokens))
                continue
            whole = [item for item, _ in islice(rest, len(part))]
            try:
                summary = await anyio.to_thread.run_sync(partial(self._accepted, reply, whole, summary))
            except RejectedSummary as rejected:
                if problem is not None:
                    raise
                problem = rejected.reason
                continue
            problem = None
            done += 1
            for _ in part:
                rest.popleft()
            if not rest:
                return summary
            if self._tracker.size_of_summary(summary) * 2 > room:
                raise RejectedSummary("the model's summary leaves no room for the rest of the history")

    def completed(self, text: str, found: Extract, items: Sequence[Item], previous: Summary | None) -> Summary:
        """Complete a model's text from the extract; an empty text returns the extract alone."""
        return completed_summary(
            text,
            found,
            self._budget_tokens,
            lambda line: self._project(line, messages=0),
            items=items,
            previous=previous,
            staying=self.staying,
            may_recall=self._may_recall,
        )

    def _accepted(self, reply: ModelReply, items: Sequence[Item], previous: Summary | None) -> Summary:
        """Turn a reply into a summary. Raises `RejectedSummary` if the reply is not one."""
        found = extract(items, previous.facts if previous else ())
        text = with_true_citations(cleaned(reply.text, reply.finish_reason), items, previous)
        problem = problem_of(text, SECTIONS, SummarySource(items, previous.text if previous else "", found.facts))
        if problem is not None:
            raise RejectedSummary(problem)
        summary = self.completed(text, found, items, previous)
        known = kept_reply_tokens(reply.usage, thinking_seen=bool(reply.reasoning_text))
        written = features(reply.text)
        if known is None or known > most_tokens(written):
            return summary
        # The model's own lines keep their reported size; only lines from the extract are projected.
        own_lines = {line.rstrip() for line in text.splitlines()}
        added = features("\n".join(line for line in summary.text.splitlines() if line not in own_lines))
        own = known * (features(summary.text) - added) / written
        return replace(summary, known_tokens=round(own + self._tracker.ledger.calibration.tokens(added)))

    def _project(self, text: str, messages: int = 1) -> int:
        return self._tracker.ledger.calibration.project(features(text), messages)

    def _room(self, window_tokens: int) -> int:
        """Return the tokens that a window leaves for a summary's material."""
        numerator, denominator = INPUT_SHARE
        instructions = sum(self._project(one.content) for one in summary_messages((), None, self._budget_tokens))
        return (window_tokens - self._most_tokens - instructions) * numerator // denominator

    def _next_part(
        self, rest: Iterable[tuple[Item, int]], summary: Summary | None, room_tokens: int
    ) -> tuple[list[Item], int]:
        """Return the next items that fit (at least one), and their size with the summary. Clips a single long item."""
        used = self._project(summary.text) if summary else 0
        part: list[Item] = []
        for item, cost in rest:
            if part and used + cost > room_tokens:
                break
            if used + cost > room_tokens:
                item, cost = self._clipped_to(item, cost, room_tokens - used)
            part.append(item)
            used += cost
        return part, used

    def _pieces(self, rest: Iterable[tuple[Item, int]], summary: Summary | None, room_tokens: int) -> int:
        """Return the number of calls for the rest, if each summary on the way has its largest size."""
        pieces, is_first = 1, True
        used = self._project(summary.text) if summary else 0
        for _, cost in rest:
            if not is_first and used + cost > room_tokens:
                pieces, used = pieces + 1, self._budget_tokens
            used, is_first = used + cost, False
        return pieces

    def _clipped_to(self, item: Item, cost_tokens: int, room_tokens: int) -> tuple[Item, int]:
        """Clip an item until its projected size fits. This may take several steps, because its ends may be denser."""
        short, cost, chars = item, cost_tokens, len(transcript_entry(item))
        while cost > room_tokens and chars > MIN_CLIPPED_CHARS:
            chars = max(MIN_CLIPPED_CHARS, min(chars // 2, chars * max(1, room_tokens) // cost))
            short = clipped(item, chars)
            cost = self._project(transcript_entry(short))
        return short, cost


def has_thought(reasoning: str, usage: Usage | None) -> bool:
    """Return whether a model thought before a reply."""
    return bool(reasoning or (usage is not None and usage.reasoning_tokens))


def _refuse_growth(summary: Summary, replaced_tokens: int, tracker: Tracker) -> None:
    size = tracker.size_of_summary(summary)
    if size >= replaced_tokens:
        raise RejectedSummary(
            f"the summary ({size:,} tokens) is no smaller than its messages ({replaced_tokens:,}); nothing changed"
        )


def _combined(outcomes: Sequence[CutOutcome]) -> CutOutcome:
    """Combine the outcomes of clearing results and evicting turns. If their bases differ, the basis is projected."""
    if len(outcomes) == 1:
        return outcomes[0]
    cleared, evicted = outcomes
    return replace(
        evicted,
        tokens_before=cleared.tokens_before,
        freed_tokens=cleared.freed_tokens + evicted.freed_tokens,
        freed_gross_tokens=cleared.freed_gross_tokens + evicted.freed_gross_tokens,
        basis=cleared.basis if evicted.basis == cleared.basis else "projected",
        freed_gross_basis=(
            cleared.freed_gross_basis if evicted.freed_gross_basis == cleared.freed_gross_basis else "projected"
        ),
    )
