"""An agent's calls to its model: what is sent, and a record of every call, whatever it was for.

Owns the request (system prompt, reminders, tools), the fingerprint of all that is sent beside the items, and that only
a main call moves the accounts. It does not know when to call, and holds no lock: calls must not overlap.
"""

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import uuid4

import anyio

from mew_agent.context.history import History, Pin
from mew_agent.context.policy import level_of
from mew_agent.context.store import CallRecord, CallRole
from mew_agent.context.tracker import Tracker
from mew_agent.conversation.model_calls import Listener, ModelCaller
from mew_agent.conversation.served import ServedWindows
from mew_agent.conversation.transcript import Transcript
from mew_agent.errors import MewAgentError, ModelError
from mew_agent.model.interface import Model, ModelReply, ModelRequest, ToolCall, ToolSpec
from mew_agent.participant.messenger import timestamp

NO_WINDOWS: Mapping[str, int] = {}


class Calls:
    """See the module. `note()` is a text that stands before the newest turn of each main call, or empty.

    `summariser` writes the summaries; None: the model itself. `windows` are those of models that may answer in place of
    the one asked for, in tokens by name.
    """

    def __init__(
        self,
        model: Model,
        transcript: Transcript,
        *,
        system_prompt: str,
        tools: Callable[[], tuple[ToolSpec, ...]],
        note: Callable[[], str],
        summariser: Model | None = None,
        windows: Mapping[str, int] = NO_WINDOWS,
    ) -> None:
        self.system_prompt = system_prompt
        self.trouble: str | None = None
        """The status word of the failure of the newest main call; None while calls succeed."""
        self.takes_tools = True
        """Set to False where the model's server takes no request that offers tools."""
        self.latency_ms: int | None = None
        self._model = model
        self._transcript = transcript
        self._tracker: Tracker = transcript.tracker
        self._served = ServedWindows(self._tracker, windows)
        self._caller = ModelCaller(model)
        self._aside = self._caller if summariser is None else ModelCaller(summariser)
        self._tools = tools
        self._note = note

    def interrupt(self) -> None:
        """Cancel the call that is running; it raises `CallInterrupted`."""
        self._caller.interrupt()
        self._aside.interrupt()

    def describe_prefix(self) -> None:
        """Tell the accounts what will be sent beside the items; between calls only, a running one has sent its own."""
        self._beside_items()

    async def count_if_close(self) -> None:
        """Where the projection's error could decide, let the server count, if it can."""
        request, _ = self._request()
        if self._tracker.is_close_call:
            tokens = await self._model.count_prompt(request)
            if tokens is not None:
                self._tracker.server_counted(tokens)

    async def main(self, listen: Listener) -> ModelReply:
        """Send everything in context and keep the reply. Raises a `ModelError`, or what interrupted the call.

        Then figures and history are as before; the call is on record either way.
        """
        history = self._transcript.history
        request, fingerprint = self._request()
        last_seq, revision, call_id = history.last_seq, history.revision, str(uuid4())
        started = anyio.current_time()
        try:
            async with self._failures_on_record(call_id, "main", revision):
                reply = with_own_ids(await self._caller.run(request, listen), history)
        except ModelError as error:
            self.trouble = error.status
            raise
        self.trouble = None
        self.latency_ms = _milliseconds_since(started)
        size = await self._transcript.size_of_reply(reply)
        self._served.answered_by(reply.served_model)
        self._tracker.call_kept(
            reply.usage,
            call_id=call_id,
            at=timestamp(),
            last_seq=last_seq,
            revision=revision,
            served_model=reply.served_model,
            fingerprint=fingerprint,
        )
        record = replace(
            _record(call_id, "main", revision, reply, self.latency_ms),
            level=level_of(self._tracker.policy, self._tracker.snapshot())[0],
            limit_tokens=self._tracker.limit_tokens,
        )
        await self._transcript.add_reply(reply, record, size)
        return reply

    async def summary(self, request: ModelRequest) -> ModelReply:
        """One summary call, by the model that writes them."""
        return await self._beside(request, "summary", self._aside)

    async def aside(self, request: ModelRequest, role: CallRole) -> ModelReply:
        """A call beside the conversation: recorded with its role, it never moves the report. Raises a `ModelError`."""
        return await self._beside(request, role, self._caller)

    async def _beside(self, request: ModelRequest, role: CallRole, caller: ModelCaller) -> ModelReply:
        call_id, started = str(uuid4()), anyio.current_time()
        revision = self._transcript.history.revision
        async with self._failures_on_record(call_id, role, revision):
            reply = await caller.run(request)
        await self._transcript.keep(call=_record(call_id, role, revision, reply, _milliseconds_since(started)))
        return reply

    def _request(self) -> tuple[ModelRequest, str]:
        """The next main request, told to the accounts, and the fingerprint of what is sent beside the items."""
        history = self._transcript.history
        tools, tools_text, note = self._beside_items()
        request = ModelRequest(history.request_messages(self.system_prompt, note), tools)
        return request, _fingerprint(self.system_prompt, tools_text, history.pins, note)

    def _beside_items(self) -> tuple[tuple[ToolSpec, ...], str, str]:
        """The tools, their text, and the note, told to the accounts with the system prompt."""
        note, tools = self._note(), self._tools() if self.takes_tools else ()
        tools_text = "".join(f"{tool.name}{tool.description}{tool.parameters}" for tool in tools)
        self._tracker.describe_prefix(self.system_prompt, tools_text + note)
        return tools, tools_text, note

    @asynccontextmanager
    async def _failures_on_record(self, call_id: str, role: CallRole, revision: int) -> AsyncIterator[None]:
        """Whatever ends a call before its reply is kept: an error, a control that interrupts it, a cancelled turn."""
        model = self._model.identity.model
        try:
            yield
        except MewAgentError as error:
            model = error.model if isinstance(error, ModelError) else model
            await self._transcript.keep(call=_failure(call_id, role, revision, str(error), model))
            raise
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self._transcript.keep(call=_failure(call_id, role, revision, "cancelled", model))
            raise


def with_own_ids(reply: ModelReply, history: History) -> ModelReply:
    """Tool calls under ids that no other call of the history has: servers exist that count from 0 in each reply."""
    taken = {call.id for item in history.items for call in item.tool_calls}
    calls: list[ToolCall] = []
    for call in reply.tool_calls:
        new = call if call.id not in taken else replace(call, id=f"call_{uuid4().hex[:24]}")
        taken.add(new.id)
        calls.append(new)
    return replace(reply, tool_calls=tuple(calls))


def _record(call_id: str, role: CallRole, revision: int, reply: ModelReply, latency_ms: int) -> CallRecord:
    return CallRecord(
        call_id, role, timestamp(), reply.served_model, revision, reply.usage, latency_ms, reply.finish_reason
    )


def _failure(call_id: str, role: CallRole, revision: int, problem: str, model: str) -> CallRecord:
    return CallRecord(call_id, role, timestamp(), model, revision, failed=problem)


def _milliseconds_since(started: float) -> int:
    return round((anyio.current_time() - started) * 1000)


def _fingerprint(system_prompt: str, tools_text: str, pins: Sequence[Pin], note: str) -> str:
    """Names everything that is sent beside the items; a change means that prompts are not comparable."""
    digest = hashlib.blake2b(digest_size=16)
    for text in (system_prompt, tools_text, *(pin.text for pin in pins), *([note] if note else [])):
        digest.update(len(text).to_bytes(8, "big"))
        digest.update(text.encode(errors="surrogatepass"))
    return digest.hexdigest()
