"""A generation that nobody asked for: the model puts its context in order because a prompt of its policy waits.

Owns that nothing is said to anybody meanwhile and that only the tools over its own context are carried out. When it
is worth one is the conversation's matter.
"""

import logging

from mew_agent.conversation.conversation import Conversation
from mew_agent.conversation.model_calls import CallInterrupted
from mew_agent.conversation.prompts import CANCELLED_RESULT
from mew_agent.errors import ModelError, PolicyStopped
from mew_agent.model.interface import ModelEvent, ToolCall
from mew_agent.tools.results import ToolResult, prompt_texts

logger = logging.getLogger("mew_agent.agent.maintenance")

NOT_NOW = "only the tools for reminders and clear_mind can be called now; nobody has asked anything."


async def keep_up(conversation: Conversation, *, max_iterations: int) -> bool:
    """Let the model put its context in order, if a prompt waits for that. Returns whether it was asked.

    Ends when it answers without tools, when its mind is cleared, or after so many calls. Failures of the model are told
    like any other and change nothing.
    """
    if not await conversation.wants_upkeep():
        return False
    await conversation.begin_turn(is_upkeep=True)
    try:
        for _ in range(max_iterations):
            reply = await conversation.call(_nobody_listens, _nothing_to_hear)
            if not reply.tool_calls:
                break
            results = {call.id: await _run(conversation, call) for call in reply.tool_calls}
            await conversation.weigh_results(reply.tool_calls, results)
            await conversation.transcript.close_open_calls(CANCELLED_RESULT, prompt_texts(results))
            await conversation.settle()
            if not len(conversation.history):
                break
    except (ModelError, PolicyStopped, CallInterrupted) as error:
        logger.warning("the context was not put in order: %s", error)
        await conversation.transcript.close_open_calls(CANCELLED_RESULT)
        await conversation.announce()
    finally:
        conversation.end_turn()
    return True


async def _run(conversation: Conversation, call: ToolCall) -> ToolResult:
    tools = conversation.context_tools
    return await tools.run(call) if tools.has(call.name) else ToolResult(NOT_NOW, is_error=True)


async def _nobody_listens(_event: ModelEvent) -> None:
    return None


async def _nothing_to_hear() -> None:
    return None
