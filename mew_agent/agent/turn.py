"""One turn: answers a chat with model calls and tools. Maintenance is a turn without a chat.

Owns what comes before and after the answer (chats kept as context, outdated questions, the discovery of peers and of
the model's window, maintenance), the calls from the question to the answer, which thoughts and frames peers see of
them, and how they continue when a killed process began the turn. The conversation decides what is in context and
whether it fits; `ChatTurn` has the steps around the answer.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import anyio
from mew_protocol.payloads.chat import TokenUsage, TurnReport
from mew_protocol.payloads.participant import Status
from mew_protocol.status_word import status_word

from mew_agent import tracing
from mew_agent.agent.board_tools import context_line
from mew_agent.agent.chat_turn import ChatTurn
from mew_agent.agent.recall import add_question
from mew_agent.agent.sessions import AgentSession, AgentSessions
from mew_agent.config.agent_config import AgentConfig
from mew_agent.context.persisted_state import CallRecord
from mew_agent.context.store import InboxChange, StoredChat
from mew_agent.conversation.conversation import Conversation
from mew_agent.conversation.events import ConversationEvent, ReplyNotice
from mew_agent.conversation.model_calls import CallInterrupted
from mew_agent.conversation.overflow import cut_reason
from mew_agent.conversation.texts import (
    CANCELLED_RESULT,
    EMPTY_ANSWER,
    REFUSED_CALL,
    TOO_LONG,
    TOO_MANY_STEPS,
    TOO_OLD,
    context_sentence,
    cut_short_text,
    does_not_fit_text,
    failed_call_text,
)
from mew_agent.errors import ContextOverflow, GatewayError, MewAgentError, ModelError, PolicyStopped
from mew_agent.model.interface import ModelEvent, ModelReply, ReasoningDelta, TextDelta, ToolCall
from mew_agent.model.usage import Usage
from mew_agent.participant.messenger import timestamp
from mew_agent.tools.results import ToolResult, images_in, prompt_texts
from mew_agent.tools.sources import CallContext

logger = logging.getLogger("mew_agent.agent.turn")

DISCOVERY_SECONDS = 5.0
"""How long an answer waits for peers that have not listed their tools yet. Each peer delays at most one answer."""

MAX_INTERRUPTIONS = 3
MAX_REPORTED_CALLS = 500
"""How many of the newest model calls are searched for those of a turn."""

MAX_REASON_CHARS = 120
NOT_AVAILABLE = "only the tools for reminders and clear_mind can be called now; there is no request to answer."
"""The result of any other tool that the model calls during idle maintenance."""

LAST_THOUGHT = {"message": "I answer.", "reasoning": "I answer.", "action": "respond"}
NO_ROOM = "I could not make room either ({problem}), so I left your message out; please send it again later."
INTERNAL_FAILURE = "An internal error occurred ({name}). Please ask again; my log has the details."


@dataclass(eq=False, kw_only=True)
class Turn(ChatTurn):
    """Answers one chat with a model."""

    last_thought: ClassVar[dict[str, Any] | None] = LAST_THOUGHT
    config: AgentConfig
    sessions: AgentSessions
    session: AgentSession
    """The one of `sessions` in which the chat is answered."""
    _failure: str | None = None
    """The name of the error that ended the turn."""
    _turn: int = -1
    _question_seq: int = -1
    _refused: dict[str, str] = field(default_factory=dict)
    """Why calls were refused, by the name of the tool."""
    _began_at: str | None = None
    _prefix: str = ""
    """Precedes the question in the context."""
    _problem: str | None = None

    @property
    def conversation(self) -> Conversation:
        """The conversation in which the chat is answered."""
        return self.session.conversation

    @property
    def spent(self) -> tuple[int, int]:
        """See `ChatTurn.spent`."""
        known = self.conversation.tracker.spending
        return (0, 0) if known is None else (known.spent_tokens or 0, known.unreported_calls)

    def cancel(self, reason: str) -> None:
        """Stop the turn: the model call is cancelled, and open tool calls get a result with this reason."""
        super().cancel(reason)
        self.conversation.calls.interrupt_summary()  # of a compaction that follows the answer

    async def answer(self) -> None:
        """Add what was said before the chat, answer it, and then carry out what the policy decided."""
        model = self.conversation.tracker.model
        with tracing.turn_span(self.participant.id, model, self.chat, self.session.key[1]) as span:
            if self.inbox.is_outdated(self.question, self.config.max_question_age_seconds):
                await self._decline_outdated()
            else:
                await self._answer_in_order()
            if self._failure is not None:
                span.fail(self._failure)

    async def _answer_in_order(self) -> None:
        conversation, config = self.conversation, self.config
        is_main = self.session is self.sessions.main
        if config.context_line:
            status = self.participant.control.status() if is_main else conversation.status()
            self._prefix = f"{context_line(status)}\n\n"
        # A chat that an earlier process began has the remarks before it in the history already.
        if self.question.state == "queued" and is_main:
            for remark in self.inbox.take_overheard():
                said, removed = remark.envelope, InboxChange(removed=(remark.number,))
                text = str(said.body["text"])
                await conversation.state.add_user_message(text, sender=said.sender, envelope_id=said.id, inbox=removed)
        await self.participant.discovery.wait_for_first_answers(DISCOVERY_SECONDS)
        if conversation.state.window_unknown:
            await self.sessions.discover_window()
        had_failed = conversation.calls.last_error_status is not None
        await self.run()
        await self.sessions.discover_window_again(conversation, had_failed=had_failed)
        await conversation.apply_pending()
        if config.upkeep and not self.inbox and not self.participant.messenger.is_paused:
            await run_maintenance(conversation, max_iterations=config.max_iterations)

    async def _decline_outdated(self) -> None:
        """Decline a question that waited too long for this process; one that names no one is only kept as context."""
        if self.chat.names(self.participant.id):
            hours = self.config.max_question_age_seconds / 3600
            await self.run(TOO_OLD.format(age=f"more than {hours:g} h"))
        else:
            await self.inbox.remember(self.question)

    async def _begin(self) -> StoredChat:
        """Begin the turn, or continue the one that a killed process began."""
        question, history = self.question, self.conversation.history
        self._began_at = None if self._was_begun else timestamp()
        form = self.chat.body.get("response_format")
        self.conversation.calls.response_format = form if isinstance(form, dict) else None
        self._turn = await self.conversation.begin_turn(resumed=question.turn if self._was_begun else None)
        first_seq = question.first_seq if self._turn == question.turn else history.next_seq
        asked = ("user", self.chat.id, self.chat.sender)
        found = (one.seq for one in history.items if (one.role, one.envelope_id, one.name) == asked)
        self._question_seq = next((seq for seq in found if seq >= first_seq), -1)
        return await self.inbox.begin(question, self._turn, first_seq)

    async def _report(self) -> dict[str, Any]:
        """Return the `turn` of an answer, for a chat that named a session."""
        if not isinstance(self.chat.body.get("session"), str):
            return {}
        history, status = self.conversation.history, self.conversation.status()
        since = self._began_at
        if since is None:  # an earlier process began the turn
            since = next((item.at for item in history.items if item.seq >= self.question.first_seq), timestamp())
        calls = await self.conversation.state.store.calls(MAX_REPORTED_CALLS)
        report = turn_report([call for call in calls if call.at >= since], self.session.key[1], status)
        report = report.model_copy(update={"is_new": self.session.is_new, "problem": self._problem})
        self.session.is_new = False
        return {"turn": report.model_dump(mode="json", exclude_none=True)}

    # -- model calls and tools ---------------------------------------------------------------------------

    async def _make_answer(self) -> str | None:
        answer: str | None = None
        max_seconds = self.config.max_turn_seconds
        try:
            await self.start_reasoning()
            if self.stream is not None:
                text, tools = str(self.chat.body.get("text") or ""), len(self.session.tools.specs())
                await self.write("status", event="start", input=text, tools=tools)
            self._scope.deadline = anyio.current_time() + max_seconds
            with self._scope, self.conversation.events.subscribed(self._show_notice):
                answer = await self._call_until_answered()
            if self._scope.cancelled_caught and self._cancel_reason is None:
                logger.warning("turn stopped after %g seconds", max_seconds)
                await self.conversation.emit_status(status_word("turn_stopped", f"after {max_seconds:g} seconds"))
                answer = TOO_LONG.format(seconds=max_seconds)
        except GatewayError:
            raise
        except Exception as error:  # the sender waits for an answer, whatever failed
            answer = await self._failed(error)
        finally:
            with anyio.CancelScope(shield=True):
                await self.conversation.state.close_open_calls(CANCELLED_RESULT)
            self.conversation.calls.response_format = None
            self.conversation.end_turn()
        return answer

    async def _call_until_answered(self) -> str:
        if (kept := await self._kept_reply()) is not None:
            return await self._complete(kept)
        interruptions = 0
        max_iterations = self.config.max_iterations
        for _ in range(max_iterations):
            await self.participant.messenger.until_active()
            try:
                reply = await self.conversation.call(self._mirror, self._ensure_question)
            except CallInterrupted:
                interruptions += 1
                if interruptions > MAX_INTERRUPTIONS:
                    raise
                await self.write("notice", event="call_again")  # what it showed of this call is no answer
                continue
            if not reply.tool_calls:
                return await self._complete(reply)
            for call in reply.tool_calls:
                thought = await self.send_call(call.id, call.name, call.arguments, reply.text)
                await self.write("thought", value=thought)
            await self._run_tools(reply)
            await self.conversation.apply_pending()
        logger.warning("turn stopped after %d model calls", max_iterations)
        await self.conversation.emit_status(status_word("turn_stopped", f"after {max_iterations} steps"))
        return TOO_MANY_STEPS.format(count=max_iterations)

    async def _kept_reply(self) -> ModelReply | None:
        """Return the reply that a killed process had received and not sent; None if there is none."""
        items = [item for item in self.conversation.history.items if item.seq >= self.question.first_seq]
        if not items or items[-1].role != "assistant" or items[-1].tool_calls:
            return None
        calls = await self.conversation.state.store.calls()
        last = next(call for call in reversed(calls) if call.role == "main" and call.failed is None)
        return ModelReply(items[-1].content, (), last.finish_reason or "stop", last.usage, last.model)

    async def _complete(self, reply: ModelReply) -> str:
        """Return the text of the answer. An incomplete reply is marked, in the status too.

        Names each refused call, because only a participant can allow it, unless the model quotes the refusal itself.
        """
        reason = cut_reason(reply, self.conversation.tracker)
        if reason is None:
            hidden = {name: problem for name, problem in self._refused.items() if problem not in reply.text}
            refusals = (REFUSED_CALL.format(name=name, problem=problem) for name, problem in hidden.items())
            return "\n\n".join((reply.text, *refusals)) if hidden else reply.text or EMPTY_ANSWER
        logger.warning("the model's reply is incomplete: %s", reason)
        await self.conversation.emit_status(status_word("reply_cut", reason))
        return cut_short_text(reply.text, reason)

    async def _ensure_question(self) -> None:
        """Add the question to the history unless it is there; a control may have removed it."""
        # The envelope id does not identify it: some clients restart their ids with every start.
        if not any(item.seq == self._question_seq for item in self.conversation.history.items):
            self._question_seq = (await add_question(self.conversation.state, self.question, self._prefix)).seq

    async def _run_tools(self, reply: ModelReply) -> None:
        """Run the calls of one reply concurrently. Their results enter in the order of the calls, whatever fails."""
        results: dict[str, ToolResult] = {}
        context = CallContext(self.chat.id, self.reasoning_id)

        async def run(call: ToolCall) -> None:
            results[call.id] = await self.session.tools.run(call, context)

        try:
            async with anyio.create_task_group() as tasks:
                for call in reply.tool_calls:
                    tasks.start_soon(run, call)
            await self.conversation.check_results(reply.tool_calls, results)
        finally:
            with anyio.CancelScope(shield=True):
                await self.conversation.state.close_open_calls(
                    CANCELLED_RESULT, prompt_texts(results), images_in(results)
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
        line = " ".join(problem.split())
        short = line if len(line) <= MAX_REASON_CHARS else f"{line[:MAX_REASON_CHARS]}..."
        await self.conversation.emit_status(status_word("tool_failed", f"{call.name}: {short}"))

    async def _failed(self, error: Exception) -> str:
        """Announce a failure in the status. Returns what the sender of the chat reads."""
        conversation = self.conversation
        self._failure = type(error).__name__
        self._problem = str(error) if isinstance(error, MewAgentError) else type(error).__name__
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
        if not isinstance(error, ContextOverflow):
            return failed_call_text(error, conversation.status())
        result_tokens = self._result_tokens()
        await conversation.remove_turn(self._turn)
        await conversation.emit_status()
        problem = conversation.compaction_error
        if problem is not None:
            return f"{failed_call_text(error, conversation.status())} {NO_ROOM.format(problem=problem)}"
        return does_not_fit_text(error, conversation.tracker.window.max_tokens, result_tokens=result_tokens)

    def _result_tokens(self) -> int:
        """Return the projected size of this turn's tool results if they are most of the turn; else 0."""
        prices = self.conversation.tracker.ledger.item_prices()
        items = [item for item in self.conversation.history.items if item.turn == self._turn]
        results = sum(prices.get(item.seq, 0) for item in items if item.role == "tool")
        return results if results * 2 > sum(prices.get(item.seq, 0) for item in items) else 0

    # -- what peers see ----------------------------------------------------------------------------------

    async def _mirror(self, event: ModelEvent) -> None:
        if isinstance(event, TextDelta):
            await self.write("token", value=event.text)
        elif isinstance(event, ReasoningDelta):
            await self.write("thinking", value=event.text)

    async def _show_notice(self, event: ConversationEvent) -> None:
        """Show notices about the context in the stream, at their place in the reply."""
        if isinstance(event, ReplyNotice):
            kind = "status" if event.kind == "size" else "notice"
            await self.write(kind, event=f"context_{event.kind}", **event.values())


async def run_maintenance(conversation: Conversation, *, max_iterations: int) -> bool:
    """Let the model put its context in order if a prompt of its policy is due. Returns whether the model was called.

    No chat is sent meanwhile, and only the tools over the agent's own context run.
    """
    if not await conversation.needs_maintenance():
        return False
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
            if not len(conversation.history):
                break
    except (ModelError, PolicyStopped, CallInterrupted) as error:
        logger.warning("idle maintenance failed: %s", error)
        await state.close_open_calls(CANCELLED_RESULT)
        await conversation.emit_status()
    finally:
        conversation.end_turn()
    return True


async def _run_tool(conversation: Conversation, call: ToolCall) -> ToolResult:
    tools = conversation.context_tools
    return await tools.run(call) if tools.has(call.name) else ToolResult(NOT_AVAILABLE, is_error=True)


async def _do_nothing(_event: ModelEvent | None = None) -> None:
    return None


def turn_report(calls: Sequence[CallRecord], session: str, status: Status) -> TurnReport:
    """Return what the calls of a turn cost. Failed calls are not counted: they have no usage, and most cost nothing."""
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
