"""Answers the chats of an agent's inbox, one after another.

Owns what comes before and after a turn: chats kept as context, outdated questions, the discovery of peers and
of the model's window, and idle maintenance. Does not know which chats are for the agent (see `Inbox`) or how a turn
runs (see `Turn`).
"""

import logging
from dataclasses import dataclass
from functools import partial

from mew_agent import tracing
from mew_agent.agent.board_tools import context_line
from mew_agent.agent.headroom import HeadroomCheck
from mew_agent.agent.inbox import Inbox
from mew_agent.agent.sessions import AgentSessions
from mew_agent.agent.turn import Turn
from mew_agent.config.agent_config import AgentConfig
from mew_agent.context.store import InboxChange, StoredChat
from mew_agent.conversation.conversation import Conversation
from mew_agent.conversation.model_calls import CallInterrupted
from mew_agent.conversation.texts import CANCELLED_RESULT, TOO_OLD
from mew_agent.errors import ModelError, PolicyStopped
from mew_agent.model.interface import ModelEvent, ToolCall
from mew_agent.participant.participant import Participant
from mew_agent.tools.results import ToolResult, images_in, prompt_texts

logger = logging.getLogger("mew_agent.agent.chat_worker")

DISCOVERY_SECONDS = 5.0
"""How long an answer waits for peers that have not listed their tools yet. Each peer delays at most one answer."""

NOT_AVAILABLE = "only the tools for reminders and clear_mind can be called now; there is no request to answer."
"""The result of any other tool that the model calls during idle maintenance."""


@dataclass(eq=False)
class ChatWorker:
    """Answers the chats of one inbox. `turn` is the one that runs now."""

    participant: Participant
    config: AgentConfig
    sessions: AgentSessions
    inbox: Inbox
    headroom: HeadroomCheck
    turn: Turn | None = None

    async def run(self) -> None:
        """Answer chats until cancelled. A chat whose answer fails is logged and does not end the others."""
        # Do not begin a question that a later missed envelope cancels or answers.
        await self.participant.session.client.until_caught_up()
        while True:
            await self.headroom.release()
            chat = await self.inbox.next(self.participant.messenger.until_active)
            self.turn = turn = await self._turn_for(chat)
            await self.headroom.count_queued()
            try:
                is_done = await turn.attempt(partial(self._answer_traced, turn))
            finally:
                self.turn = None
            if is_done:
                await self.inbox.finish(chat)

    async def _turn_for(self, chat: StoredChat) -> Turn:
        session = await self.sessions.session_for(chat.envelope.sender, chat.envelope.body.get("session"))
        prefix = ""
        if self.config.context_line:
            is_main = session is self.sessions.main
            status = self.participant.control.status() if is_main else session.conversation.status()
            prefix = f"{context_line(status)}\n\n"
        return Turn(
            participant=self.participant,
            inbox=self.inbox,
            question=chat,
            shows_reasoning=self.config.reasoning_enabled,
            session=session,
            max_iterations=self.config.max_iterations,
            max_seconds=self.config.max_turn_seconds,
            prefix=prefix,
        )

    async def _answer_traced(self, turn: Turn) -> None:
        model, session = turn.conversation.tracker.model, turn.session.key[1] or None
        with tracing.turn_span(self.participant.id, model, turn.chat, session) as span:
            await self._answer(turn)
            if turn.failure is not None:
                span.fail(turn.failure)

    async def _answer(self, turn: Turn) -> None:
        """Add what was said before a chat, answer the chat, and then carry out what the policy decided."""
        conversation, question = turn.conversation, turn.question
        state = conversation.state
        if self.inbox.is_outdated(question, self.config.max_question_age_seconds):
            await self._answer_outdated(turn)
            return
        # A chat that an earlier process began has the remarks before it in the history already.
        if question.state == "queued" and turn.session is self.sessions.main:
            for remark in self.inbox.take_overheard():
                said, removed = remark.envelope, InboxChange(removed=(remark.number,))
                text = str(said.body["text"])
                await state.add_user_message(text, sender=said.sender, envelope_id=said.id, inbox=removed)
        await self.participant.discovery.wait_for_first_answers(DISCOVERY_SECONDS)
        if state.window_unknown:
            await self.sessions.discover_window()
        had_failed = conversation.calls.last_error_status is not None
        await turn.run()
        await self.sessions.discover_window_again(conversation, had_failed=had_failed)
        await conversation.apply_pending()
        if self.config.upkeep and not self.inbox and not self.participant.messenger.is_paused:
            await run_maintenance(conversation, max_iterations=self.config.max_iterations)

    async def _answer_outdated(self, turn: Turn) -> None:
        """Decline a question that waited too long for this process; one that names no one is only kept as context."""
        if not turn.chat.names(self.participant.id):
            await self.inbox.remember(turn.question)
            return
        hours = self.config.max_question_age_seconds / 3600
        await turn.run(TOO_OLD.format(age=f"more than {hours:g} h"))


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
