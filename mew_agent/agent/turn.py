"""One turn: a chat, the thinking about it, the answer. Owns the order of the envelopes that peers see.

acknowledge, reasoning/start, then per model call thoughts and tool results, reasoning/conclusion (exactly one), and
the final chat, correlated with the question. What is in context, and whether it fits, is the conversation's matter.
"""

import logging
import math
from contextlib import suppress
from typing import Any

import anyio
from mew_protocol import kinds
from mew_protocol.envelope import Envelope

from mew_agent.conversation.conversation import Conversation
from mew_agent.conversation.model_calls import CallInterrupted
from mew_agent.conversation.notices import Notice
from mew_agent.conversation.overflow import why_cut
from mew_agent.conversation.prompts import (
    CANCELLED_RESULT,
    EMPTY_ANSWER,
    TOO_LONG,
    TOO_MANY_STEPS,
    context_sentence,
    cut_short_text,
    does_not_fit_text,
    failure_text,
)
from mew_agent.errors import ContextOverflow, GatewayError, ModelError, NotConnected, NotPermitted, PolicyStopped
from mew_agent.model.interface import ModelEvent, ModelReply, ReasoningDelta, TextDelta, ToolCall
from mew_agent.participant.participant import Participant
from mew_agent.participant.streams import ReasoningStream
from mew_agent.tools.results import ToolResult, prompt_texts
from mew_agent.tools.sources import AgentTools, CallContext

logger = logging.getLogger("mew_agent.agent.turn")

MAX_INTERRUPTIONS = 3
ANSWER_SECONDS = 300.0
"""How long an answer waits for a gateway that is gone; then nobody hears it."""

ASIDE_SECONDS = 5.0
"""The same for what is said around the answer."""

LONGEST_REASON_CHARS = 120
NO_ROOM = "I could not make room either ({problem}), so I left your message out; please send it again later."
INTERNAL_FAILURE = "Something inside me failed ({name}); my log says more."


class Turn:
    """Answers one chat. `run` returns when the answer is out, or the turn was cancelled."""

    def __init__(
        self,
        participant: Participant,
        conversation: Conversation,
        tools: AgentTools,
        chat: Envelope,
        *,
        max_iterations: int,
        show_reasoning: bool,
        max_seconds: float = math.inf,
        prefix: str = "",
    ) -> None:
        """`prefix` is put before the question, where the model reads it."""
        self._participant = participant
        self._conversation = conversation
        self._transcript = conversation.transcript
        self._tools = tools
        self.chat = chat
        self._max_iterations = max_iterations
        self._max_seconds = max_seconds
        self._prefix = prefix
        self._show_reasoning = show_reasoning
        self._scope = anyio.CancelScope()
        self._cancel_reason: str | None = None
        self._stream: ReasoningStream | None = None
        self._turn = self._heard_seq = -1
        self.reasoning_id: str | None = None

    def cancel(self, reason: str) -> None:
        """Stop thinking: the model call is cut, open tool calls get a result that says so."""
        self._cancel_reason = reason
        self._scope.cancel()

    async def close_stream(self, reason: str) -> None:
        """Close the reasoning stream before the turn does."""
        if self._stream is not None:
            await self._stream.aclose(reason)

    async def run(self) -> None:
        """Answer the chat. Raises a `GatewayError` when there is nobody left to answer."""
        await self._say(kinds.CHAT_ACKNOWLEDGE, {"status": "processing"})
        self._turn = await self._conversation.begin_turn(self._show)
        answer: str | None = None
        try:
            await self._start_reasoning()
            self._scope.deadline = anyio.current_time() + self._max_seconds
            with self._scope:
                answer = await self._think()
            if self._scope.cancelled_caught and self._cancel_reason is None:
                answer = await self._out_of_time()
        except GatewayError:
            raise
        except Exception as error:  # whatever happened, the asker is waiting for an answer
            answer = await self._failed(error)
        finally:
            with anyio.CancelScope(shield=True):
                await self._transcript.close_open_calls(CANCELLED_RESULT)
            self._conversation.end_turn()
        await self._conclude(answer)
        if answer is not None:
            await self._participant.send(
                kinds.CHAT,
                {"text": answer or EMPTY_ANSWER},
                to=(self.chat.sender,),
                correlation_id=(self.chat.id,),
                wait_seconds=ANSWER_SECONDS,
            )

    # -- thinking ----------------------------------------------------------------------------------------

    async def _think(self) -> str:
        interruptions = 0
        for _ in range(self._max_iterations):
            await self._participant.control.until_active()
            try:
                reply = await self._conversation.call(self._mirror, self._hear_question)
            except CallInterrupted:
                interruptions += 1
                if interruptions > MAX_INTERRUPTIONS:
                    raise
                if self._stream is not None:  # what it showed of the call so far is no answer
                    await self._stream.write("notice", event="call_again")
                continue
            if not reply.tool_calls:
                return await self._whole(reply)
            await self._thought(reply)
            await self._run_tools(reply)
            await self._conversation.settle()
        logger.warning("a turn was stopped after %d model calls", self._max_iterations)
        await self._conversation.announce(f"turn_stopped:after {self._max_iterations} steps")
        return TOO_MANY_STEPS.format(count=self._max_iterations)

    async def _whole(self, reply: ModelReply) -> str:
        """The answer; one that was cut short says so, in the status, too."""
        why = why_cut(reply, self._conversation.tracker)
        if why is None:
            return reply.text
        logger.warning("the model's reply was cut short: %s", why)
        await self._conversation.announce(f"reply_cut:{why}")
        return cut_short_text(reply.text, why)

    async def _hear_question(self) -> None:
        """Put the question into the history, first or again after a control cleared it: it is never lost."""
        # Envelope ids are no help here: clients exist that count from 1 again after every start.
        if not any(item.seq == self._heard_seq for item in self._conversation.history.items):
            text = self._prefix + str(self.chat.body.get("text") or "")
            item = await self._transcript.hear(text, sender=self.chat.sender, envelope_id=self.chat.id)
            self._heard_seq = item.seq

    async def _run_tools(self, reply: ModelReply) -> None:
        """Run the calls of one reply side by side; results enter in the order of the calls, whatever happens."""
        results: dict[str, ToolResult] = {}
        context = CallContext(self.chat.id, self.reasoning_id)

        async def run(call: ToolCall) -> None:
            results[call.id] = await self._tools.run(call, context)

        try:
            async with anyio.create_task_group() as tasks:
                for call in reply.tool_calls:
                    tasks.start_soon(run, call)
            await self._conversation.weigh_results(reply.tool_calls, results)
        finally:
            with anyio.CancelScope(shield=True):
                await self._transcript.close_open_calls(CANCELLED_RESULT, prompt_texts(results))
        for call in reply.tool_calls:
            if results[call.id].is_error:
                await self._tell_failure(call, results[call.id].text)

    async def _tell_failure(self, call: ToolCall, problem: str) -> None:
        """A call failed: the model reads it all, the log has it all, the status says it in short."""
        logger.warning("the call of '%s' failed: %s", call.name, problem)
        line = " ".join(problem.split())
        short = line if len(line) <= LONGEST_REASON_CHARS else f"{line[:LONGEST_REASON_CHARS]}..."
        await self._conversation.announce(f"tool_failed:{call.name}: {short}")

    async def _out_of_time(self) -> str:
        logger.warning("a turn was stopped after %g seconds", self._max_seconds)
        await self._conversation.announce(f"turn_stopped:after {self._max_seconds:g} seconds")
        return TOO_LONG.format(seconds=self._max_seconds)

    async def _failed(self, error: Exception) -> str:
        """Tell everybody the state of things, and find the words for the asker."""
        conversation = self._conversation
        match error:
            case ModelError():
                logger.warning("%s [request %s]", error, error.request_id or "without an id")
            case CallInterrupted():
                return f"{error}; please ask again."
            case PolicyStopped():
                await conversation.announce(f"policy_stopped:{error.problem}")
                return failure_text(error, conversation.status())
            case _:
                logger.exception("a turn failed")
                said = INTERNAL_FAILURE.format(name=type(error).__name__)
                return f"{said} {context_sentence(conversation.status())}"
        await conversation.announce()
        if not isinstance(error, ContextOverflow):
            return failure_text(error, conversation.status())
        result_tokens = self._result_tokens()
        await conversation.withdraw_turn(self._turn)
        await conversation.announce()
        problem = conversation.compaction_problem
        if problem is not None:
            return f"{failure_text(error, conversation.status())} {NO_ROOM.format(problem=problem)}"
        return does_not_fit_text(error, conversation.tracker.window.max_tokens, result_tokens=result_tokens)

    def _result_tokens(self) -> int:
        """What the results of this turn's tools take, if they take most of it."""
        prices = self._conversation.tracker.ledger.item_prices()
        items = [item for item in self._conversation.history.items if item.turn == self._turn]
        results = sum(prices.get(item.seq, 0) for item in items if item.role == "tool")
        return results if results * 2 > sum(prices.get(item.seq, 0) for item in items) else 0

    # -- what peers see ----------------------------------------------------------------------------------

    async def _start_reasoning(self) -> None:
        if not self._show_reasoning or not self._participant.may_send(kinds.REASONING_START):
            return
        text = str(self.chat.body.get("text") or "")
        start = await self._participant.send(
            kinds.REASONING_START, {"message": text, "input": text}, correlation_id=(self.chat.id,)
        )
        self.reasoning_id = start.id
        self._stream = ReasoningStream(self._participant, start.id)
        self._stream.start()
        await self._stream.write("status", event="start", input=text, tools=len(self._tools.specs()))

    async def _mirror(self, event: ModelEvent) -> None:
        if self._stream is None:
            return
        match event:
            case TextDelta(text):
                await self._stream.write("token", value=text)
            case ReasoningDelta(text):
                await self._stream.write("thinking", value=text)
            case ModelReply():
                return

    async def _show(self, notice: Notice) -> None:
        """What becomes of the context is seen where the reply is: between what came before it and what follows."""
        if self._stream is not None:
            kind = "status" if notice.kind == "size" else "notice"
            await self._stream.write(kind, event=f"context_{notice.kind}", **notice.values())

    async def _thought(self, reply: ModelReply) -> None:
        for call in reply.tool_calls:
            message = reply.text or f"I call {call.name}."
            thought: dict[str, Any] = {
                "message": message,
                "reasoning": message,
                "action": "tool",
                "actionInput": {"tool": call.name, "arguments": call.arguments, "toolCallId": call.id},
            }
            if self.reasoning_id is not None:
                await self._say(kinds.REASONING_THOUGHT, thought, in_reasoning=True)
            if self._stream is not None:
                await self._stream.write("thought", value=thought)

    async def _conclude(self, answer: str | None) -> None:
        if self.reasoning_id is None:
            return
        payload: dict[str, Any] = {"message": answer[:200] if answer else ""}
        if answer is None:
            payload = {"cancelled": True, "reason": self._cancel_reason or "cancelled", "message": "cancelled"}
        else:
            thought = {"message": "I answer.", "reasoning": "I answer.", "action": "respond"}
            await self._say(kinds.REASONING_THOUGHT, thought, in_reasoning=True)
        await self._say(kinds.REASONING_CONCLUSION, payload, in_reasoning=True)
        if self._stream is not None:
            await self._stream.write("status", event="conclusion", cancelled=answer is None)
            self._participant.start_soon(self._stream.aclose, "cancelled" if answer is None else "complete")

    async def _say(self, kind: str, payload: dict[str, Any], *, in_reasoning: bool = False) -> None:
        """Send one of the envelopes around the answer; an agent that may not is still allowed to answer.

        Nor does an answer depend on a gateway being there meanwhile; it only has to be there in the end.
        """
        with suppress(NotPermitted, NotConnected):
            await self._participant.send(
                kind,
                payload,
                to=() if in_reasoning else (self.chat.sender,),
                correlation_id=(self.chat.id,),
                context=self.reasoning_id if in_reasoning else None,
                wait_seconds=ASIDE_SECONDS,
            )
