"""Idle maintenance: an agent's model puts its context in order between two chats, if its policy asks for that.

Owns which tools run meanwhile, and the bound. Does not know when a prompt of the policy is due (see `Conversation`).
"""

import logging

from mew_agent.conversation.conversation import Conversation
from mew_agent.conversation.model_calls import CallInterrupted
from mew_agent.conversation.texts import CANCELLED_RESULT
from mew_agent.errors import ModelError, PolicyStopped
from mew_agent.model.interface import ModelEvent, ToolCall
from mew_agent.tools.results import ToolResult, images_in, prompt_texts

logger = logging.getLogger("mew_agent.agent.maintenance")

NOT_AVAILABLE = "only the tools for reminders and clear_mind can be called now; there is no request to answer."
"""The result of any other tool that the model calls during idle maintenance."""


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
