"""An agent's calls to its model, one at a time, with a record of each.

Owns the request, the fingerprint of its texts before the items, the window of a fallback model, and the lock. Does not
decide when to call, or interpret replies.
"""

import hashlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, assert_never
from uuid import uuid4

import anyio
from mew_protocol.context_report import Waiting
from mew_protocol.json_values import well_formed
from mew_protocol.payloads.read_receipts import PromptCall
from mew_settings.model_facts import ModelPrice

from mew_agent import tracing
from mew_agent.compaction.compactor import SUMMARY_TIMEOUT_SECONDS, history_after
from mew_agent.compaction.planner import CompactionPlan
from mew_agent.compaction.summary import RejectedSummary
from mew_agent.context.cuts import CountBasis, CountedCut
from mew_agent.context.facts import PrefixCounted, PromptCounted
from mew_agent.context.history import History, Summary
from mew_agent.context.message_facts import Prompted, ReceiptChange
from mew_agent.context.persisted_state import CallRecord, CallRole
from mew_agent.context.preamble import PrefixText
from mew_agent.context.spending import SummarySpending, amount_of
from mew_agent.context.store import SessionChange
from mew_agent.conversation.context_state import ContextState
from mew_agent.conversation.conversation_events import PromptRead
from mew_agent.conversation.pins import ContextPins
from mew_agent.errors import (
    ContextOverflow,
    MewAgentError,
    ModelError,
    ModelRateLimited,
    ModelRefused,
    ModelStreamCut,
    ToolsUnsupported,
)
from mew_agent.model.interface import (
    Message,
    Model,
    ModelEvent,
    ModelReply,
    ModelRequest,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolSpec,
    Window,
)
from mew_agent.participant.messenger import timestamp
from mew_agent.tokens.projection import StreamProjection
from mew_agent.tokens.tokenizers import TextCounter
from mew_agent.tools.bounds import ResultBound

logger = logging.getLogger("mew_agent.conversation.model_calls")

ReplyListener = Callable[[ModelEvent], Awaitable[None]]  # receives every event of a running reply


class Prefix(NamedTuple):
    """The tools and reminders of a request, and all texts before its items."""

    tools: tuple[ToolSpec, ...] = ()
    reminders: str = ""
    texts: tuple[PrefixText, ...] = ()


_Counted = TypeVar("_Counted")

COUNT_SECONDS = 5.0  # timeout of a compaction for all counts of the server together

_ANY_QUESTION = Message("user", "?")  # one token

NEVER_READ: Final = (ModelRefused, ModelRateLimited, ContextOverflow, ToolsUnsupported)
"""Failures after which the provider has not passed the prompt to the model."""

CALL_BOUND_SECONDS = 30.0  # time that a control waits for the running model call before it interrupts the call


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationOptions:
    """Options of one conversation."""

    system_prompt: str
    tools: Callable[[], tuple[ToolSpec, ...]] = tuple  # tools for the next request
    tools_version: Callable[[], object] = object  # changes with the tools, unless the history or the window does
    keep_newest_items: int | None = None  # bounds the history before each turn
    call_bound_seconds: float = CALL_BOUND_SECONDS
    summariser: Model | None = None  # model that writes the summaries; None: the model itself
    count_seconds: float = COUNT_SECONDS
    measure_compactions: bool = False  # with calls of one token, where the server cannot count
    summary_timeout_seconds: float = SUMMARY_TIMEOUT_SECONDS  # for one summary, without the addition for its size
    result_bound: ResultBound = field(default_factory=ResultBound)
    load_counter: Callable[[], TextCounter | None] | None = None  # loads the model's tokenizer, if any, in a thread
    shared_pins: ContextPins | None = None  # pins of the conversation that stores them; None: this one
    windows: Mapping[str, int] = field(default_factory=dict)  # windows in tokens of models that may answer instead
    prices: Mapping[str, ModelPrice] = field(default_factory=dict)  # by the name of the model


class CallInterrupted(MewAgentError):
    """A control interrupted this call; the caller may repeat it."""


class ModelCalls:
    """The calls of one conversation. Hold `lock` during `main` and `summary`."""

    def __init__(self, model: Model, state: ContextState, options: ConversationOptions) -> None:
        self.lock = anyio.Lock()  # held during a call, and during each change of the history
        self.last_error_status: str | None = None
        """The status word of the newest main call if it failed; None if it did not."""
        self.latency_ms: int | None = None
        self.response_format: Mapping[str, Any] | None = None  # of the main calls of the current turn
        self.prefix = Prefix()
        """The prefix of the running or the next request, as last described."""
        self._prefix_key: object = None
        self.prompted: Prompted | None = None
        """The prompt of the main call that runs, until its reply is stored."""
        self.supports_tools = True  # false after the server refused a request because it offered tools
        self._model = model
        self._summariser = options.summariser or model
        self._state = state
        self.options = options
        self._scope: anyio.CancelScope | None = None
        self._is_summary = False  # whether the running call writes a summary
        self._stopping_summaries = 0  # number of waiting controls that interrupt a summary instead of waiting for it
        self._own_window: Window | None = None
        self._wrapping_tokens: int | None = None  # a template's tokens around one message, counted by the server

    # -- the lock ----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def between_calls(self, *, stops_summary: bool = False) -> AsyncIterator[None]:
        """Hold the history between two calls; interrupt a call that runs past the bound.

        With `stops_summary`, a summary is interrupted at once, because the control makes it useless.
        """
        self._stopping_summaries += stops_summary
        try:
            if stops_summary:
                self.interrupt_summary()
            with anyio.move_on_after(self.options.call_bound_seconds) as wait:
                await self.lock.acquire()
            if wait.cancelled_caught:
                self.interrupt()
                await self.lock.acquire()
        finally:
            self._stopping_summaries -= stops_summary
        try:
            yield
        finally:
            self.lock.release()

    def interrupt(self) -> None:
        """Cancel the running call, also at the server; it raises `CallInterrupted`."""
        if self._scope is not None:
            self._scope.cancel()

    def interrupt_summary(self) -> None:
        """Interrupt the running call if it writes a summary."""
        if self._is_summary:
            self.interrupt()

    # -- calls -------------------------------------------------------------------------------------------

    async def main(self, listener: ReplyListener) -> ModelReply:
        """Send everything in context and add the reply. Raises a `ModelError` or `CallInterrupted`, adding nothing."""
        tracker, (request, fingerprint) = self._state.tracker, self._request()
        try:
            reply, record = await self._made(self._model, request, "main", listener)
            if reply.tool_calls:
                reply = with_unique_call_ids(reply, self._state.history)
            self.last_error_status = tracker.model_wait = None
            self.latency_ms = record.latency_ms
            if self.options.windows:
                self._follow_served_model(reply.served_model)
            assert self.prompted is not None
            # Even if the turn was cancelled in the meantime: its model has read the prompt.
            with anyio.CancelScope(shield=True):
                await self._state.add_reply(reply, record, prompted=self.prompted, fingerprint=fingerprint)
            return reply
        except ModelError as error:
            self.last_error_status = error.status
            since = timestamp() if tracker.model_wait is None else tracker.model_wait.since
            problem = f"{error.endpoint}{f' ({error.detail})' if error.detail else ''}"
            tracker.model_wait = Waiting(kind="model", what=problem, since=since)
            raise
        finally:
            self.prompted = None  # from here on the store has the read messages: receipts find them in one of the two

    async def summary(self, request: ModelRequest) -> ModelReply:
        """Make a summary call, which changes no figure. Raises `RejectedSummary` if the summary is too long.

        Not every server obeys `max_output_tokens`, so the reply is measured while it arrives.
        """
        if self._stopping_summaries:
            raise CallInterrupted("a control interrupted the summary")
        self._is_summary = True
        try:
            return await self._recorded(self._summariser, request, "summary", self._within(request.max_output_tokens))
        finally:
            self._is_summary = False

    async def side_call(self, request: ModelRequest, role: CallRole) -> ModelReply:
        """Make a call between two calls of the conversation. It is recorded with its own role and changes no figure."""
        async with self.lock:
            return await self._recorded(self._model, request, role)

    def stop_offering_tools(self) -> bool:
        """Offer no tools from now on. Returns False if none were offered before."""
        offered, self.supports_tools = self.supports_tools, False
        return offered

    def _within(self, limit_tokens: int | None) -> ReplyListener | None:
        """Return a listener that stops a reply when it certainly exceeds the limit."""
        if limit_tokens is None:
            return None
        projection = StreamProjection(0, None, self._state.tracker.ledger.calibration)

        most_tokens = limit_tokens * 5 // 4 + 64  # the projection may be off by a fifth, and more in the first words

        async def watch(event: ModelEvent) -> None:
            if isinstance(event, TextDelta | ReasoningDelta) and projection.add(event.text) > most_tokens:
                raise RejectedSummary(f"the summary did not end within {limit_tokens:,} tokens")

        return watch

    async def _recorded(
        self, model: Model, request: ModelRequest, role: CallRole, listener: ReplyListener | None = None
    ) -> ModelReply:
        reply, record = await self._made(model, request, role, listener)
        await self._state.save(SessionChange(call=record))
        return reply

    async def _made(
        self, model: Model, request: ModelRequest, role: CallRole, listener: ReplyListener | None
    ) -> tuple[ModelReply, CallRecord]:
        """Make a call. Returns the reply and its record. Without a reply, stores the record and raises the error."""
        tracker, prices, started = self._state.tracker, self.options.prices, anyio.current_time()
        record = CallRecord(str(uuid4()), role, timestamp(), model.identity.model, self._state.history.revision)
        if role == "main":  # the next call that receipts count sends the history
            self._state.prompts_made += 1
            call = PromptCall(number=self._state.prompts_made, id=record.id, at=record.at)
            self.prompted = Prompted(call, self._state.history.last_seq, is_read=False)
        try:
            with tracing.span(
                "model_call",
                {"call_id": record.id},
                model=model.identity.model,
                endpoint=model.identity.endpoint,
                max_tokens=request.max_output_tokens,
                compacted=tracker.last_compaction is not None,
            ) as span:
                reply = span.reply = await self._stream(model, request, listener)
        except (MewAgentError, anyio.get_cancelled_exc_class()) as error:
            is_error = isinstance(error, MewAgentError)
            served = error.model if isinstance(error, ModelError) else record.model
            failure = replace(record, at=timestamp(), model=served, failed=str(error) if is_error else "cancelled")
            known = None if role != "main" or isinstance(error, NEVER_READ) else self.prompted
            await self._state.save(SessionChange(call=failure, receipts=ReceiptChange(prompted=known)))
            raise
        price = prices.get(reply.served_model) or prices.get(record.model)  # servers answer with longer names
        record = replace(
            record,
            at=timestamp(),
            model=reply.served_model,
            usage=reply.usage,
            latency_ms=round((anyio.current_time() - started) * 1000),
            finish_reason=reply.finish_reason,
        )
        if price is not None and reply.usage is not None:
            record = replace(record, amount=amount_of(price, reply.usage), currency=price.currency)
        return reply, record

    async def _stream(self, model: Model, request: ModelRequest, listener: ReplyListener | None) -> ModelReply:
        reply: ModelReply | None = None
        try:
            with anyio.CancelScope() as self._scope:
                async with aclosing(model.stream(request)) as events:
                    async for raw in events:
                        event = _well_formed(raw)
                        if isinstance(event, ModelReply):
                            reply = event
                        if self.prompted is not None and not self.prompted.is_read:
                            # The first output of a main call: the model has read the prompt.
                            self.prompted = self.prompted._replace(is_read=True)
                            await self._state.events.emit(PromptRead(self.prompted.call.number))
                        if listener is not None:
                            await listener(event)
                if reply is None:
                    raise ModelStreamCut(model.identity.endpoint, model.identity.model, "no reply")
        finally:
            self._scope = None
        if reply is None:
            raise CallInterrupted("a control interrupted this call")
        return reply

    # -- requests ----------------------------------------------------------------------------------------

    def describe_prefix(self) -> Prefix:
        """Update the size of the request's prefix. Do not use it during a call."""
        state, reminders = self._state, self._state.reminder_text
        sources = self.options.tools_version(), state.tracker.window, state.history.revision, len(state.kept_outside)
        key = sources, self.supports_tools, reminders, self.response_format
        if key != self._prefix_key:
            tools = self.options.tools() if self.supports_tools else ()
            form = "" if self.response_format is None else json.dumps(self.response_format)
            others = (PrefixText("reminders", reminders), PrefixText("response_format", form))
            texts = (
                PrefixText("system_prompt", self.options.system_prompt),
                *(PrefixText("tool", f"{tool.name}{tool.description}{tool.parameters}", tool.name) for tool in tools),
                *(one for one in others if one.text),
            )
            self.prefix, self._prefix_key = Prefix(tools, reminders, texts), key
        texts = self.prefix.texts
        state.tracker.describe_prefix(texts[0].text, "".join([one.text for one in texts[1:]]))
        return self.prefix

    def renew_prefix(self) -> None:
        """Update the size of the prefix between two calls: the tools of peers may have changed since the last one."""
        if not self.lock.locked():
            self.describe_prefix()

    async def count_if_close(self) -> None:
        """Let the server count the next request if the projection's error could change a decision."""
        self.describe_prefix()
        if self._state.tracker.is_close_call():
            request, _ = self._request()
            tokens = await self._unless_changed(self._model.count_prompt(request))
            if tokens is not None:
                self._state.tracker.ledger.apply(PromptCounted(tokens))

    async def _unless_changed(self, counting: Awaitable[_Counted | None]) -> _Counted | None:
        """Return the count of the next request; None if the request changed meanwhile."""
        key = self._state.tracker.request_key
        counted = await counting
        return counted if self._state.tracker.request_key == key else None

    @property
    def summary_price(self) -> ModelPrice | None:
        """The configured price of the model that writes summaries."""
        return self.options.prices.get(self._summariser.identity.model)

    def request_up_to(self, last_seq: int) -> ModelRequest | None:
        """Return the start of a main request, up to this item; None if another model writes the summaries."""
        if self.options.summariser is not None:
            return None
        history = self._state.history
        shown = replace(history, items=[item for item in history.items if item.seq <= last_seq])
        return ModelRequest(shown.request_messages(self.options.system_prompt), self.describe_prefix().tools)

    async def count_cut(
        self, plan: CompactionPlan, summary: Summary | None, spending: SummarySpending | None = None
    ) -> CountedCut | None:
        """Let the server count the next request before and after a plan; None if it cannot or is too slow.

        If the server cannot count and the options allow it, measure with calls of one token and add their cost to
        `spending`.
        """
        history = self._state.history
        if history.open_calls():
            return None  # templates refuse a call without its result
        after = history_after(plan, summary, history)
        # Count the next part last, so that a provider with a prompt cache has read it already.
        versions = [replace(history, items=list(history.items)), after]
        versions[1:1] = [] if summary is None else [replace(after, summary=None)]
        basis: CountBasis = "server_counted"
        self.describe_prefix()
        has_question = any(one.items and one.items[-1].role == "assistant" for one in versions)
        requests = partial(self._as_if_asked, has_question=has_question)
        counts = await self._counts(versions, requests, self._model.count_prompt, self.options.count_seconds)
        if (
            counts is None
            and self.options.measure_compactions
            and self._state.tracker.ledger.evidence.is_backend_steady
        ):
            basis = "exact"
            measure = partial(self._measured, spending=spending)
            counts = await self._counts(versions, requests, measure, self.options.summary_timeout_seconds)
        if counts is None:
            return None
        before, *without_summary, left = counts
        return CountedCut(before, left, next(iter(without_summary), None), not has_question, basis)

    async def _counts(
        self,
        versions: Sequence[History],
        request: Callable[[History], ModelRequest],
        count: Callable[[ModelRequest], Awaitable[int | None]],
        seconds: float,
    ) -> list[int] | None:
        """Return the size of the next request with each of these histories.

        None if not all can be counted in time, or if the history changed meanwhile.
        """

        async def count_all() -> list[int] | None:
            counts: list[int] = []
            for version in versions:
                tokens = await count(request(version))
                if tokens is None or not (counts or self._state.tracker.ledger.agrees_with_count(tokens)):
                    return None
                counts.append(tokens)
            return counts

        with anyio.move_on_after(seconds):
            return await self._unless_changed(count_all())
        return None

    async def _measured(self, request: ModelRequest, *, spending: SummarySpending | None) -> int | None:
        """Return the prompt tokens that the provider reports for a call of one token; None if it fails."""
        try:
            reply = await self._recorded(self._model, replace(request, max_output_tokens=1), "utility")
        except (ModelError, CallInterrupted) as error:
            logger.info("not measured: %s", error)
            return None
        if spending is not None:
            spending.calls += 1
            spending.price = spending.price if self.options.summariser is None else None  # two models, two prices
            spending.record(reply.usage)
        tracker, usage = self._state.tracker, reply.usage
        answered = reply.served_model, reply.backend
        is_same = answered == (tracker.measurement.served_model, tracker.ledger.evidence.terms.backend)
        return usage.prompt_tokens if usage is not None and usage.is_plain and is_same else None

    async def count_text(self, text: str) -> int | None:
        """Let the server count the tokens that a text takes in a prompt; None if it cannot or is too slow."""
        with anyio.move_on_after(self.options.count_seconds):
            if self._wrapping_tokens is None:
                bare = await self._model.count_prompt(ModelRequest((_ANY_QUESTION,)))
                self._wrapping_tokens = None if bare is None else bare - 1
            if self._wrapping_tokens is not None:
                tokens = await self._model.count_prompt(ModelRequest((Message("user", text),)))
                return None if tokens is None else max(0, tokens - self._wrapping_tokens)
        return None

    async def count_new_tools(self, counted: CountedCut) -> None:
        """Let the server count the tools that are offered only after a compaction."""
        ledger, history = self._state.tracker.ledger, self._state.history
        grown = ledger.prefix_growth_tokens
        request = self._as_if_asked(history, has_question=not counted.is_next_prompt)
        if ledger.prefix_growth_tokens != grown:
            with anyio.move_on_after(self.options.count_seconds):
                tokens = await self._unless_changed(self._model.count_prompt(request))
                if tokens is None:
                    return
                ledger.apply(PrefixCounted(grown + tokens - counted.after))
                if counted.is_next_prompt:
                    self._state.tracker.ledger.apply(PromptCounted(tokens))

    def _as_if_asked(self, history: History, *, has_question: bool) -> ModelRequest:
        """Return the request so that it ends with a question, if it has one: servers count a final reply differently.

        Compared requests have the same end.
        """
        request, _ = self._request(history)
        return replace(request, messages=(*request.messages, _ANY_QUESTION)) if has_question else request

    def _request(self, of: History | None = None) -> tuple[ModelRequest, str]:
        """Return the next main request (with this history, if given) and its fingerprint."""
        history, system_prompt = of or self._state.history, self.options.system_prompt
        tools, reminders, texts = self.describe_prefix()
        messages = history.request_messages(system_prompt, reminders)
        request = ModelRequest(messages, tools, response_format=self.response_format)
        # Prompts are comparable only if the digests of everything except their items are equal.
        digest = hashlib.blake2b(digest_size=16)
        for text in (*(one.text for one in texts), *(pin.text for pin in history.pins)):
            digest.update(len(text).to_bytes(8, "big"))
            digest.update(text.encode(errors="surrogatepass"))
        return request, digest.hexdigest()

    # -- fallback models ---------------------------------------------------------------------------------

    def _follow_served_model(self, served_model: str) -> None:
        """Use the window of the model that answered."""
        # Gateways fall back to another model when the requested one is busy, and the limit changes with it. Servers
        # also answer with longer names of the same model (`gpt-4o-2024-08-06`), so only configured names count.
        is_requested = served_model == self._state.tracker.model
        tokens = None if is_requested else self.options.windows.get(served_model)
        if tokens is not None:
            if self._own_window is None:
                self._own_window = self._state.tracker.window
            self._state.change_window(Window(tokens, "configured", f"models.{served_model}"))
        elif self._own_window is not None:
            window, self._own_window = self._own_window, None
            self._state.change_window(window)


def with_unique_call_ids(reply: ModelReply, history: History) -> ModelReply:
    """Return the reply with tool call ids that are unique in the history; some servers count from 0 in each reply."""
    taken = {call.id for item in history.items for call in item.tool_calls}
    calls: list[ToolCall] = []
    for call in reply.tool_calls:
        new = call if call.id not in taken else replace(call, id=f"call_{uuid4().hex[:24]}")
        taken.add(new.id)
        calls.append(new)
    return replace(reply, tool_calls=tuple(calls))


def _well_formed(event: ModelEvent) -> ModelEvent:
    """Return the event without lone surrogates, which models may write but nobody can send."""
    match event:
        case TextDelta(text):
            return TextDelta(well_formed(text))
        case ReasoningDelta(text):
            return ReasoningDelta(well_formed(text))
        case ModelReply():
            calls = tuple(
                ToolCall(*map(well_formed, (call.id, call.name, call.arguments, call.extra)))
                for call in event.tool_calls
            )
            text, thinking = well_formed(event.text), well_formed(event.reasoning_text)
            extra = well_formed(event.extra)
            return replace(event, text=text, reasoning_text=thinking, tool_calls=calls, extra=extra)
        case _:
            assert_never(event)
