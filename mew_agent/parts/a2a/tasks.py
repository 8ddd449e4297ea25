"""A participant's answer as an A2A task: to a chat by an agent or a person, or to a call by a tool.

Maps each event of an answer to an update of the task, with the context report in its metadata, and sets the final
state. A task's `contextId` is a session of an agent. Does not know HTTP or cards.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

import anyio
from a2a.helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext, SimpleRequestContextBuilder
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import Message, SendMessageRequest, Task, TaskState
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError, UnsupportedOperationError

from mew_agent.errors import MewAgentError, NotPermitted, Refused, Rejected
from mew_agent.participant.answers.agent_answers import Exchange
from mew_agent.participant.answers.builder import ContextNotice, Thinking, ToolCalled, Writing
from mew_agent.participant.mcp_client import Timeouts
from mew_agent.parts.a2a.tool_calls import CALL, A2ARole, call_in, offer_of, parts_of
from mew_agent.parts.shared.api_limits import MAX_TEXT_BYTES, AnswerFailed, session_name
from mew_agent.parts.shared.chat_participant import AgentQuestion, ChatParticipant
from mew_agent.tools.peer_offers import PeerTool

CONTEXT_EXTENSION: Final = "urn:mew:context:v1"
"""URI of the extension with the context report as its metadata. The version rises when a reader of v1 would misread
it."""

ANSWER: Final = "answer"
"""Id and name of the artifact with the answer."""

MAX_TASKS: Final = 1_000
"""How many tasks are kept for each participant; the least recently changed one is dropped first."""

TOOL_FAILED: Final = "tool_failed"
DISCOVERY_SECONDS: Final = 5.0
"""How long a task waits for the tools of its participant."""

COLLECT_SECONDS: Final = {Writing: 0.1, Thinking: 1.0}
"""How long pieces of text are collected into one update: each update stores the whole task."""


class ParticipantTasks(AgentExecutor):
    """Runs the tasks of one participant: each asks it one question, or calls one of its tools."""

    def __init__(self, participant: ChatParticipant, name: str, role: Callable[[], A2ARole]) -> None:
        self._participant, self._name, self._role = participant, name, role

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Ask, and update the task until the answer is complete. Cancelling it cancels the participant's work."""
        assert context.message is not None
        task = context.current_task or new_task_from_user_message(context.message)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        if context.current_task is None:
            await event_queue.enqueue_event(task)
        role = self._role()
        try:
            if (call := call_in(context.message.parts, reads_text=role == "tool")) is not None:
                await self._call(updater, *call)
            elif role == "tool" and (tools := await tools_of(self._participant, self._name)):
                await updater.add_artifact(offer_of(self._name, tools), ANSWER, ANSWER)
                await updater.complete()
            else:
                await self._ask(updater, context, role)
        except AnswerFailed as error:
            await _end(updater, _state_after(error), error.message, error.code)
        except (NotPermitted, Refused, Rejected) as error:
            await _end(updater, TaskState.TASK_STATE_REJECTED, str(error), "not_permitted")
        except MewAgentError as error:
            await _end(updater, TaskState.TASK_STATE_FAILED, str(error), TOOL_FAILED)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await updater.cancel()
            raise

    async def _ask(self, updater: TaskUpdater, context: RequestContext, role: A2ARole) -> None:
        is_person = role == "person"
        session = session_name("a2a", updater.context_id) if role == "agent" else None
        question = AgentQuestion(context.get_user_input(), session, is_for_person=is_person)
        async with self._participant.open_exchange(self._name, question) as exchange:
            updates = _TaskUpdates(updater, exchange, CONTEXT_EXTENSION in context.requested_extensions)
            await updates.follow(f"waiting for '{self._name}' to answer" if is_person else "")

    async def _call(self, updater: TaskUpdater, tool: str, arguments: Mapping[str, Any]) -> None:
        await updater.start_work()
        seconds = self._participant.options.inactivity_seconds
        result = await self._participant.call_tool(
            self._name, tool, arguments, timeouts=Timeouts(seconds, max(seconds, Timeouts().decision_seconds))
        )
        if result.is_error:
            await _end(updater, TaskState.TASK_STATE_FAILED, result.text, TOOL_FAILED)
        else:
            await updater.add_artifact(parts_of(result), ANSWER, ANSWER)
            await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Do nothing: the library then cancels `execute`, and thereby the participant's work."""


async def tools_of(me: ChatParticipant, name: str, wait_seconds: float = DISCOVERY_SECONDS) -> tuple[PeerTool, ...]:
    """Return the tools of a participant; asks it if they are unknown. Empty if it has none or is absent.

    A silent participant delays only one call, not every later listing.
    """
    if name in me.peers and me.peers[name].tools is None:
        await me.discovery.wait_for_first_answers(wait_seconds, name)
    return (me.peers[name].tools if name in me.peers else None) or ()


async def _end(updater: TaskUpdater, state: TaskState, text: str, code: str) -> None:
    await updater.update_status(state, updater.new_agent_message([new_text_part(text)], {"code": code}))


class _TaskUpdates:
    """The updates of one task, from the events of one exchange."""

    def __init__(self, updater: TaskUpdater, exchange: Exchange, shows_context: bool) -> None:
        self._updater, self._exchange, self._shows_context = updater, exchange, shows_context
        self._kind: type[Writing | Thinking] = Writing
        self._collected: list[str] = []
        """Pieces of this kind that were not sent yet."""
        self._shown: list[str] = []

    async def follow(self, notice: str = "") -> None:
        """Send updates until the answer is complete, and complete the task. `notice` is shown until the first
        update.
        """
        if notice:
            await self._working(notice, {"kind": "notice"})
        else:
            await self._status(TaskState.TASK_STATE_WORKING)
        due = math.inf
        while True:
            event = None
            with anyio.CancelScope(deadline=due) as wait:
                event = await self._exchange.next_event()
            if isinstance(event, Writing | Thinking) and self._collected and type(event) is self._kind:
                self._collected.append(event.text)
                continue
            await self._send_collected()
            due = math.inf
            match event:
                case Writing() | Thinking():
                    self._kind, self._collected = type(event), [event.text]
                    due = anyio.current_time() + COLLECT_SECONDS[self._kind]
                case ToolCalled(name=tool, arguments=arguments):
                    about = {"kind": "tool_call", "tool": tool, "arguments": arguments}
                    await self._working(f"{tool} {arguments}", about)
                case ContextNotice(text=text):
                    await self._working(text, {"kind": "notice"})
                case None if not wait.cancelled_caught:
                    break
                case _:
                    pass
        answer = self._exchange.answer.text
        if answer != "".join(self._shown):  # replace text that the agent discarded
            await self._artifact(answer, append=False, last_chunk=True)
        await self._status(TaskState.TASK_STATE_COMPLETED)

    async def _send_collected(self) -> None:
        text, self._collected = "".join(self._collected), []
        if text and self._kind is Writing:
            await self._artifact(text, append=bool(self._shown))
            self._shown.append(text)
        elif text:
            await self._working(text, {"kind": "thinking"})

    async def _artifact(self, text: str, *, append: bool, last_chunk: bool = False) -> None:
        parts = [new_text_part(text)]
        await self._updater.add_artifact(parts, ANSWER, ANSWER, append=append, last_chunk=last_chunk)

    async def _working(self, text: str, metadata: dict[str, Any]) -> None:
        message = self._updater.new_agent_message([new_text_part(text)], metadata)
        await self._status(TaskState.TASK_STATE_WORKING, message)

    async def _status(self, state: TaskState, message: Message | None = None) -> None:
        metadata = None
        if self._shows_context and (report := self._exchange.context.as_status()) is not None:
            values = report.model_dump(mode="json", exclude_none=True)
            metadata = {CONTEXT_EXTENSION: {"participant": self._exchange.agent, **values}}
        await self._updater.update_status(state, message, metadata=metadata)


def _state_after(error: AnswerFailed) -> TaskState:
    """Return the final state of a task without an answer."""
    if error.status in (HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS):
        return TaskState.TASK_STATE_REJECTED
    return TaskState.TASK_STATE_CANCELED if error.code == "cancelled" else TaskState.TASK_STATE_FAILED


class UsableRequests(SimpleRequestContextBuilder):
    """Accepts messages that begin a task: a text or a call. Refuses others before a task exists."""

    async def build(
        self,
        context: ServerCallContext,
        params: SendMessageRequest | None = None,
        task_id: str | None = None,
        context_id: str | None = None,
        task: Task | None = None,
    ) -> RequestContext:
        """Build the context of a request. Raises `A2AError` for a message that cannot be sent to a participant."""
        if params is not None and task_id:
            raise UnsupportedOperationError("each message begins a task; send its `contextId` instead of a `taskId`")
        parts = params.message.parts if params is not None else ()
        if call_in(parts) is None:
            if not all(part.HasField("text") for part in parts):
                problem = f"message.parts: agents read text only (expected parts with `text`, or one data part {CALL})"
                raise ContentTypeNotSupportedError(problem)
            text = "".join(part.text for part in parts)
            if not text.strip():
                raise InvalidParamsError("message.parts: contains no text")
            if len(text.encode(errors="replace")) > MAX_TEXT_BYTES:
                raise InvalidParamsError(f"message.parts: more than {MAX_TEXT_BYTES:,} bytes of text")
        return await super().build(context, params, task_id, context_id, task)


class RecentTasks(InMemoryTaskStore):
    """The newest `MAX_TASKS` tasks of one participant."""

    def __init__(self) -> None:
        super().__init__()
        self._ids: OrderedDict[str, None] = OrderedDict()

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """Store a task, and drop the least recently changed one if there are too many."""
        await super().save(task, context)
        self._ids[task.id] = None
        self._ids.move_to_end(task.id)
        if len(self._ids) > MAX_TASKS:
            oldest, _ = self._ids.popitem(last=False)
            await self.delete(oldest, context)
