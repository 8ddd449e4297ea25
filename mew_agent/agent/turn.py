"""An answer made by our own conversation: model calls and tools. Maintenance makes calls without a chat.

Owns the calls from question to answer, the thoughts and frames that peers see, the continuation of a killed process's
turn, and the work after the answer (discovery of the window, maintenance). The conversation decides what is in context
and whether it fits; `ChatTurn` has the steps around the answer.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import anyio
from mew_board.visible import short_line
from mew_board.words import report_line
from mew_protocol.envelope import Envelope
from mew_protocol.json_values import text_at
from mew_protocol.payloads.chat import MAIN_SESSION, TokenUsage, TurnReport
from mew_protocol.payloads.participant import BoardEntry, Status
from mew_protocol.payloads.text_fit import WOULD_OVERFLOW
from mew_protocol.status_word import status_word

from mew_agent.agent.engine import AgentSide, Answering
from mew_agent.agent.headroom import too_large_text
from mew_agent.agent.recall import as_referred_to
from mew_agent.agent.shared_turn import prompt_text
from mew_agent.config.agent_config import AgentConfig
from mew_agent.context.history import Item
from mew_agent.context.message_facts import MessageKey
from mew_agent.context.persisted_state import CallRecord
from mew_agent.context.store import ChatRefusal, InboxChange, StoredChat, StoreUnusable
from mew_agent.context.tracker import Tracker
from mew_agent.conversation.conversation import Conversation
from mew_agent.conversation.conversation_events import ConversationEvent, ReplyNotice
from mew_agent.conversation.fit import refused_message
from mew_agent.conversation.model_calls import CallInterrupted
from mew_agent.conversation.texts import (
    CANCELLED_RESULT,
    EMPTY_ANSWER,
    INTERNAL_FAILURE,
    REFUSED_CALL,
    TOO_LONG,
    TOO_MANY_STEPS,
    CutReason,
    context_sentence,
    cut_short_text,
    does_not_fit_text,
    failed_call_text,
)
from mew_agent.errors import ContextOverflow, ModelError, ModelFailed, PolicyStopped, problem_of
from mew_agent.model.interface import ModelEvent, ModelReply, ReasoningDelta, TextDelta, ToolCall
from mew_agent.model.usage import Usage
from mew_agent.participant.messenger import timestamp
from mew_agent.participant.participant import Participant
from mew_agent.participant.reasoning_stream import Reasoning
from mew_agent.tools.results import ToolResult, images_in, prompt_texts
from mew_agent.tools.sources import AgentTools, CallContext

logger = logging.getLogger("mew_agent.agent.turn")

DISCOVERY_SECONDS = 5.0
"""How long an answer waits for peers that have not listed their tools yet. Each peer delays at most one answer."""

MAX_INTERRUPTIONS = 3
MAX_REPORTED_CALLS = 500
"""How many of the newest model calls are searched for those of a turn."""

FULL_PERCENT: Final = 98
"""Servers stop a reply at the end of the window or a few tokens before it."""

MAX_REASON_CHARS = 120
NOT_AVAILABLE = "only the tools for reminders and clear_mind can be called now; there is no request to answer."
"""The result of any other tool that the model calls during idle maintenance."""

LAST_THOUGHT = {"message": "I answer.", "reasoning": "I answer.", "action": "respond"}
NO_ROOM = "I could not make room either ({problem}), so I left your message out; please send it again later."
LEFT_OUT = "I removed what the request added to my context, because my next requests would fail, too."


class DiscoverWindow(Protocol):
    """Asks the model's server for its window again."""

    async def __call__(self, *, had_failed: bool) -> None:
        """Ask. `had_failed`: the last call failed, so the server may be back."""


SessionKey = tuple[str, str]
"""The participant that the session is for, and the name that the participant chose."""

MAIN: Final[SessionKey] = ("", MAIN_SESSION)


@dataclass(eq=False)
class AgentSession:
    """One conversation with its tools. `is_new` until its first answer."""

    key: SessionKey
    conversation: Conversation
    tools: AgentTools
    is_new: bool = True


class ConversationAnswer(Answering):
    """Answers one chat in a conversation."""

    last_thought = LAST_THOUGHT

    def __init__(
        self,
        me: Participant,
        config: AgentConfig,
        session: AgentSession,
        question: StoredChat,
        reasoning: Reasoning,
        agent: AgentSide,
        discover_window: DiscoverWindow,
    ) -> None:
        self.conversation = conversation = session.conversation
        self.model, self.session, self.reads_remarks = conversation.tracker.model, session.key[1], session.key == MAIN
        self.max_seconds = config.max_turn_seconds
        self._me, self._config, self._session, self._reasoning = me, config, session, reasoning
        self._agent = agent
        self._chat = question.envelope
        self._discover_window = discover_window
        self._prefix = ""
        """Precedes the question in the context."""
        if config.context_line:
            status = me.control.status() if session.key == MAIN else conversation.status()
            own = report_line(BoardEntry(id=me.id, connected=True, status=status), datetime.now(UTC))
            self._prefix = f"[Your context: {own}]\n\n"
        self._turn = -1
        self._entered: dict[int, int] = {}
        """The item of each chat that has entered, by the number of the chat."""
        self._refused: dict[str, str] = {}
        """Why calls were refused, by the name of the tool."""
        self._began_at: str | None = None
        self._had_failed = False

    @property
    def spent(self) -> tuple[int, int]:
        known = self.conversation.tracker.spending
        return (0, 0) if known is None else (known.spent_tokens or 0, known.unreported_calls)

    def cancel(self) -> None:
        self.conversation.calls.interrupt_summary()  # of a compaction after the answer

    async def add_remark(self, remark: Envelope, removed: InboxChange) -> bool:
        text, state = str(remark.body["text"]), self.conversation.state
        async with self.conversation.calls.lock:  # not during a compaction
            await state.add_user_message(text, sender=remark.sender, envelope_id=remark.id, inbox=removed)
        return self._session.key == MAIN  # the inbox is in the store of this session

    async def finish(self, *, is_idle: bool) -> None:
        conversation = self.conversation
        calls = conversation.calls
        if not calls.last_error_status and conversation.tracker.window.basis not in ("configured", "loaded"):
            await self._discover_window(had_failed=self._had_failed)
        await conversation.apply_pending()
        if self._config.upkeep and is_idle and await conversation.needs_maintenance():
            await run_maintenance(conversation, max_iterations=self._config.max_iterations)

    async def begin(self, question: StoredChat, *, was_begun: bool) -> tuple[int, int]:
        await self._me.discovery.wait_for_first_answers(DISCOVERY_SECONDS)
        if self.conversation.tracker.lacks_window:
            await self._discover_window(had_failed=True)
        self._had_failed = self.conversation.calls.last_error_status is not None
        history = self.conversation.history
        self._began_at = None if was_begun else timestamp()
        form = self._chat.body.get("response_format")
        self.conversation.calls.response_format = form if isinstance(form, dict) else None
        self._turn = await self.conversation.begin_turn(resumed=question.turn if was_begun else None)
        first_seq = question.first_seq if self._turn == question.turn else history.next_seq
        self._entered, self._first_seq = {}, first_seq
        if was_begun:
            self._entered = entered_in(history.items, self._agent.chats(), first_seq)
        return self._turn, first_seq

    async def report(self, question: StoredChat) -> dict[str, Any]:
        """Return the `turn` of an answer to a chat that named a session."""
        if not isinstance(self._chat.body.get("session"), str):
            return {}
        history, status = self.conversation.history, self.conversation.status()
        since = self._began_at
        if since is None:  # an earlier process began the turn
            since = next((item.at for item in history.items if item.seq >= question.first_seq), timestamp())
        try:
            calls = await self.conversation.state.store.calls(MAX_REPORTED_CALLS)
        except StoreUnusable as error:  # the sender waits for the answer, not for its figures
            logger.warning("the cost of a turn is not known: %s", error)
            return {}
        report = turn_report([call for call in calls if call.at >= since], self._session.key[1], status)
        report = report.model_copy(update={"is_new": self._session.is_new, "problem": self.problem})
        self._session.is_new = False
        return {"turn": report.model_dump(mode="json", exclude_none=True)}

    # -- model calls and tools ---------------------------------------------------------------------------

    async def make(self) -> str:
        text, tools = text_at(self._chat.body, "text"), len(self.conversation.calls.describe_prefix().tools)
        await self._reasoning.write("status", event="start", input=text, tools=tools)
        # A killed process may have received the reply to this question.
        if self._began_at is None and (kept := await self._kept_reply()) is not None:
            return await self._complete(kept)
        interruptions, max_iterations = 0, self._config.max_iterations
        with self.conversation.events.subscribed(self._show):
            for step in range(max_iterations):
                await self._me.messenger.until_active()
                if step:
                    await self._agent.let_in()
                try:
                    reply = await self.conversation.call(self._show, self._ensure_chats)
                except CallInterrupted:
                    interruptions += 1
                    if interruptions > MAX_INTERRUPTIONS:
                        raise
                    await self._reasoning.write("notice", event="call_again")  # its text is not the answer
                    continue
                if not reply.tool_calls:
                    return await self._complete(reply)
                await self._run_tools(reply)
                await self.conversation.apply_pending()
            logger.warning("turn stopped after %d model calls", max_iterations)
            await self.conversation.emit_status(status_word("turn_stopped", f"after {max_iterations} steps"))
        return TOO_MANY_STEPS.format(count=max_iterations)

    async def timed_out(self) -> str:
        logger.warning("turn stopped after %g seconds", self.max_seconds)
        await self.conversation.emit_status(status_word("turn_stopped", f"after {self.max_seconds:g} seconds"))
        return TOO_LONG.format(seconds=self.max_seconds)

    async def end(self) -> None:
        await self.conversation.state.close_open_calls(CANCELLED_RESULT)
        self.conversation.calls.response_format = None
        self.conversation.end_turn()

    async def _kept_reply(self) -> ModelReply | None:
        """Return the reply that a killed process received but did not send; None if there is none."""
        items = [item for item in self.conversation.history.items if item.seq >= self._first_seq]
        if not items or items[-1].role != "assistant" or items[-1].tool_calls:
            return None
        calls = await self.conversation.state.store.calls()
        last = next((call for call in reversed(calls) if call.role == "main" and call.failed is None), None)
        if last is None:  # its record was pruned
            return ModelReply(items[-1].content, (), "stop", None, self.conversation.tracker.model)
        return ModelReply(items[-1].content, (), last.finish_reason or "stop", last.usage, last.model)

    async def _complete(self, reply: ModelReply) -> str:
        """Return the text of the answer. Mark an incomplete reply here and in the status.

        Name each refused call, because only a participant can allow it, unless the model quotes the refusal.
        """
        reason = cut_reason(reply, self.conversation.tracker)
        if reason is None:
            hidden = {name: problem for name, problem in self._refused.items() if problem not in reply.text}
            refusals = (REFUSED_CALL.format(name=name, problem=problem) for name, problem in hidden.items())
            if hidden:
                return "\n\n".join((reply.text, *refusals))
            return reply.text if reply.text.strip() else EMPTY_ANSWER
        logger.warning("the model's reply is incomplete: %s", reason)
        await self.conversation.emit_status(status_word("reply_cut", reason))
        return cut_short_text(reply.text, reason)

    async def _ensure_chats(self) -> None:
        """Add the missing chats of this turn to the history; a control may have removed them."""
        present = {item.seq for item in self.conversation.history.items}
        for place, chat in enumerate(self._agent.chats()):
            if self._entered.get(chat.number) not in present:
                self._entered[chat.number] = await self._add(chat, is_first=not place)

    async def _add(self, chat: StoredChat, *, is_first: bool) -> int:
        """Add a chat to the history. Returns the seq of its item."""
        envelope, state, whole = chat.envelope, self.conversation.state, None
        own = text_at(envelope.body, "text")
        text = prompt_text(chat, own, is_first=is_first) if chat.section else own
        frame = text.removesuffix(own)
        if chat.form != "whole":
            note, part, whole = await as_referred_to(text, chat.form, state)
            if whole is not None:
                text, frame = f"{note}{part}", note
        if is_first:
            text, frame = self._prefix + text, self._prefix + frame
        item = await state.add_user_message(
            text, sender=envelope.sender, envelope_id=envelope.id, whole=whole, frame_chars=len(frame)
        )
        return item.seq

    async def _run_tools(self, reply: ModelReply) -> None:
        """Show the calls of one reply, and run them concurrently. Their results enter in call order."""
        for call in reply.tool_calls:
            thought = await self._reasoning.call(call.id, call.name, call.arguments, reply.text)
            await self._reasoning.write("thought", value=thought)
        results: dict[str, ToolResult] = {}
        contexts = {call.id: CallContext(self._chat.id, self._reasoning.id) for call in reply.tool_calls}

        async def run(call: ToolCall) -> None:
            results[call.id] = await self._session.tools.run(call, contexts[call.id])

        try:
            async with anyio.create_task_group() as tasks:
                for call in reply.tool_calls:
                    tasks.start_soon(run, call)
            await self.conversation.check_results(reply.tool_calls, results)
        finally:
            with anyio.CancelScope(shield=True):
                sources = {
                    name: tuple(MessageKey.of(one) for one in context.messages) for name, context in contexts.items()
                }
                await self.conversation.state.close_open_calls(
                    CANCELLED_RESULT, prompt_texts(results), images_in(results), sources
                )
        for call in reply.tool_calls:
            result = results[call.id]
            if result.is_error:
                await self._report_tool_failure(call, result.text)
            if result.is_refused:
                self._refused[call.name] = result.text.rstrip(".")

    async def _report_tool_failure(self, call: ToolCall, problem: str) -> None:
        """Log a failed call in full, and announce it briefly in the status."""
        logger.warning("call of '%s' failed: %s", call.name, problem)
        shown = short_line(problem, MAX_REASON_CHARS)
        await self.conversation.emit_status(status_word("tool_failed", f"{call.name}: {shown}"))

    async def failed(self, error: Exception) -> str | ChatRefusal:
        """Announce a failure in the status. Returns the text for the sender, or the reason why its chat can never
        fit.
        """
        conversation = self.conversation
        self.failure = type(error).__name__
        self.problem = problem_of(error)
        match error:
            case ModelError():
                logger.warning("%s [request %s]", error, error.request_id or "id unknown")
            case CallInterrupted():
                return f"{error}; please ask again."
            case PolicyStopped():
                await conversation.emit_status(status_word("policy_stopped", error.problem))
                return failed_call_text(error, conversation.status())
            case _:
                logger.exception("a turn failed")
                text = INTERNAL_FAILURE.format(name=type(error).__name__)
                return f"{text} {context_sentence(conversation.status())}"
        await conversation.emit_status()
        if (refusal := await self._refuse_too_large(error)) is not None:
            return refusal
        if not isinstance(error, ContextOverflow):
            return await self._after_failed_call(error)
        result_tokens = self._result_tokens()
        await conversation.remove_turn(self._turn)
        await conversation.emit_status()
        problem = conversation.compaction_error
        if problem is not None:
            return f"{failed_call_text(error, conversation.status())} {NO_ROOM.format(problem=problem)}"
        return does_not_fit_text(error, conversation.tracker.window.max_tokens, result_tokens=result_tokens)

    async def _after_failed_call(self, error: ModelError) -> str:
        """Return the answer after a failed call. Remove what made the provider reject the request."""
        conversation = self.conversation
        if not (isinstance(error, ModelFailed) and error.is_rejection):
            return failed_call_text(error, conversation.status())
        await conversation.remove_unaccepted(str(error))
        await conversation.emit_status()
        return f"{failed_call_text(error, conversation.status())} {LEFT_OUT}"

    async def _refuse_too_large(self, error: ModelError) -> ChatRefusal | None:
        """Remove the chat if this error shows that no compaction makes room for it. Returns its refusal, else None.

        Several chats of a turn may be too large only together.
        """
        conversation = self.conversation
        fit = refused_message(conversation.state, error)
        if fit is None or len(self._agent.chats()) > 1:
            return None
        await conversation.remove_turn(self._turn)
        await conversation.emit_status()
        self.problem = f"{too_large_text(fit)}. {error}"
        return ChatRefusal(self.problem, WOULD_OVERFLOW, fit)

    def _result_tokens(self) -> int:
        """Return the projected size of this turn's tool results if they are most of the turn; else 0."""
        prices = self.conversation.tracker.ledger.item_prices()
        items = [item for item in self.conversation.history.items if item.turn == self._turn]
        results = sum(prices.get(item.seq, 0) for item in items if item.role == "tool")
        return results if results * 2 > sum(prices.get(item.seq, 0) for item in items) else 0

    # -- what peers see ----------------------------------------------------------------------------------

    async def _show(self, event: ModelEvent | ConversationEvent) -> None:
        """Show the reply in the stream as it arrives, with notices about the context in their places."""
        match event:
            case TextDelta():
                await self._reasoning.write("token", value=event.text)
            case ReasoningDelta():
                await self._reasoning.write("thinking", value=event.text)
            case ReplyNotice():
                kind = "status" if event.kind == "size" else "notice"
                await self._reasoning.write(kind, event=f"context_{event.kind}", **event.values())
            case _:
                pass


async def run_maintenance(conversation: Conversation, *, max_iterations: int) -> None:
    """Let the model tidy its context, as its policy's prompt requests; see `needs_maintenance`.

    Sends no chat, and runs only tools for the agent's own context.
    """
    state = conversation.state
    await conversation.begin_turn(is_maintenance=True)
    try:
        for _ in range(max_iterations):
            reply = await conversation.call(_do_nothing, _do_nothing)
            if not reply.tool_calls:
                break
            results = {call.id: await _run_tool(conversation, call) for call in reply.tool_calls}
            await conversation.check_results(reply.tool_calls, results)
            await state.close_open_calls(CANCELLED_RESULT, prompt_texts(results), images_in(results))
            await conversation.apply_pending()
            if not len(conversation.history.items):
                break
    except (ModelError, PolicyStopped, CallInterrupted) as error:
        logger.warning("idle maintenance failed: %s", error)
        await state.close_open_calls(CANCELLED_RESULT)
        await conversation.emit_status()
    finally:
        conversation.end_turn()


async def _run_tool(conversation: Conversation, call: ToolCall) -> ToolResult:
    tools = conversation.context_tools
    return await tools.run(call) if tools.has(call.name) else ToolResult(NOT_AVAILABLE, is_error=True)


async def _do_nothing(_event: ModelEvent | None = None) -> None:
    return None


def entered_in(items: Sequence[Item], chats: Sequence[StoredChat], first_seq: int) -> dict[int, int]:
    """Return, by chat number, the item of each chat that entered from `first_seq` on."""
    # The envelope id alone does not identify a chat: some clients restart their ids at every start.
    found: dict[tuple[str | None, str | None], list[int]] = {}
    for item in reversed(items):
        if item.seq < first_seq:
            break
        if item.role == "user":
            found.setdefault((item.name, item.envelope_id), []).append(item.seq)
    seqs = ((one.number, found.get((one.envelope.sender, one.envelope.id))) for one in chats)
    return {number: known.pop() for number, known in seqs if known}


def cut_reason(reply: ModelReply, tracker: Tracker) -> CutReason | None:
    """Return why a reply is incomplete; None if it is complete. `length` alone does not show that the window is
    full.
    """
    if reply.finish_reason == "content_filter":
        return "content_filter"
    if reply.finish_reason != "length":
        return None
    total_tokens = tracker.ledger.projected_tokens if reply.usage is None else reply.usage.total_tokens
    return "context_full" if total_tokens * 100 >= tracker.window.max_tokens * FULL_PERCENT else "max_tokens"


def turn_report(calls: Sequence[CallRecord], session: str, status: Status) -> TurnReport:
    """Return the cost of a turn's calls. Failed calls do not count: they have no usage, and most are free."""
    calls = [call for call in calls if call.failed is None and call.role in ("main", "summary")]
    usages = [call.usage for call in calls if call.usage is not None]
    last = next((call.usage for call in reversed(calls) if call.role == "main"), None)
    return TurnReport(
        session=session,
        calls=len(calls),
        calls_without_usage=len(calls) - len(usages),
        usage=_sum_of(usages) if usages and len(usages) == len(calls) else None,
        last_call=_sum_of([last]) if last is not None else None,
        status=status,
    )


def _sum_of(usages: Sequence[Usage]) -> TokenUsage:
    figures = {name: [getattr(one, name) for one in usages] for name in TokenUsage.model_fields}
    return TokenUsage(**{name: None if None in values else sum(values) for name, values in figures.items()})
