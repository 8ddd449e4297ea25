"""Reports the context of an agent as a participant, from the calls that pass a relay.

Decides when to report a figure. Carries out no controls: the agent owns its history, so the answer to a compaction
request is `skipped: not_owner`. `main_line` decides which calls count.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import anyio
from mew_listener.request_guard import ONLY_OWN, Allowed
from mew_protocol.envelope import Envelope

from mew_agent.context.spending import with_call
from mew_agent.errors import InvalidReport
from mew_agent.model.usage import implausibility
from mew_agent.participant.dispatcher import Hooks
from mew_agent.participant.event_handlers import ChatReceived
from mew_agent.participant.messenger import timestamp
from mew_agent.participant.participant import Participant
from mew_agent.participant.receipts import ReceiptSource
from mew_agent.parts.meter.calls import MeasuredCalls
from mew_agent.parts.meter.main_line import MainLine, MeteredCall
from mew_agent.parts.meter.metered_receipts import RelayedReceipts
from mew_agent.parts.meter.replies import Reply
from mew_agent.parts.meter.request_facts import CallFacts
from mew_agent.parts.shared.relay import serve_relay

logger = logging.getLogger("mew_agent.parts.meter")

NOT_OWNER: Final = "not_owner"
"""Answer to a control: the meter reports a context that it does not own."""

NOT_HERE: Final = "I only measure an agent that works elsewhere; it does not read the chats of this space."


class Meter:
    """Observes the calls of one agent and reports the newest figure of its own conversation as `me`.

    `window` is the size of the agent's window in tokens. `on_call` receives each ended call.
    """

    def __init__(
        self, me: Participant, *, window: int | None = None, on_call: Callable[[MeteredCall], None] | None = None
    ) -> None:
        self._me = me
        self._window = window
        self._on_call = on_call
        self._line = MainLine()
        self.receipts = RelayedReceipts(me.id)
        me.control.receipts = ReceiptSource(me.messenger, self.receipts)
        me.use_hooks(_ChatHooks(me, self.receipts))
        self._changed = anyio.Event()
        me.external_context.refuses_with = NOT_OWNER
        me.external_context.window = window
        me.external_context.forget_figures("no_call_yet")
        me.on_chat(_decline)

    def begin(self, facts: CallFacts) -> MeteredCall:
        """See `CallObserver.begin`. A continued call is confirmed at once."""
        call = self._line.begin(facts)
        self.receipts.begun(call, facts.texts, self._line.newest)
        self._changed.set()
        return call

    def end(self, call: MeteredCall, reply: Reply | None) -> None:
        """See `CallObserver.end`."""
        if reply is not None and (problem := self._problem_of(call, reply)) is not None:
            logger.warning("implausible usage ignored (%s)", problem)
            reply = replace(reply, usage=None, problem=problem)
        self._line.end(call, reply, timestamp())
        self.receipts.ended(self._line.newest)
        context = self._me.external_context
        context.spending = with_call(context.spending, call.usage, None, None)
        logger.debug("call: %s", call.as_json())
        if self._on_call is not None:
            self._on_call(call)
        self._changed.set()

    def _problem_of(self, call: MeteredCall, reply: Reply) -> str | None:
        """Return why the usage of a call is implausible; None if it is plausible."""
        if reply.usage is None:
            return None
        newest, text = self._line.newest, call.facts.body_bytes
        before = None if newest is None or newest.usage is None else newest.usage.prompt_tokens
        return implausibility(
            reply.usage,
            window_tokens=self._window,
            # A prompt may shrink by any factor, because a new conversation began.
            before=None if before is None else min(before, reply.usage.prompt_tokens),
            project=None if text is None else lambda: text,
        )

    async def keep_reporting(self) -> None:
        """Report the newest figure whenever it changes. Skip figures replaced before sending."""
        shown: tuple[MeteredCall, str] | None = None
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            call = self._line.newest
            if call is not None and shown != (call, call.verdict):
                shown = (call, call.verdict)
                await self._report(call)

    async def _report(self, call: MeteredCall) -> None:
        usage = call.usage
        if usage is None:
            is_unreported = call.reply is None or call.reply.problem is None
            await self._me.report_context(unknown="usage_unavailable" if is_unreported else "usage_implausible")
            return
        before = self._me.external_context.figures
        measured_at = call.measured_at
        if before is not None and measured_at is not None:
            # A confirmed call may be older than the provisional one before it.
            measured_at = max(measured_at, before.measured_at)
        try:
            await self._me.report_context(
                usage=usage,
                window=self._window,
                basis="reported" if call.verdict == "main" else "provisional",
                messages=None if call.facts.previous_response else call.messages,
                model=call.model or None,
                measured_at=measured_at,
            )
        except InvalidReport as error:
            logger.warning("a figure of the model server was not reported: %s", error)


class _ChatHooks(Hooks):
    """Unlike event handlers, passes a chat on before any later request of the agent is relayed."""

    def __init__(self, me: Participant, receipts: RelayedReceipts) -> None:
        self._me, self._receipts = me, receipts

    async def receive(self, envelope: Envelope) -> None:
        self._receipts.track(envelope)

    async def joined(self) -> None:
        await self._me.joined()


async def _decline(chat: ChatReceived) -> None:
    """Decline a chat to the agent, which is not in the space, so that its sender does not wait."""
    if chat.is_to_me and not chat.is_answer:
        await chat.reply(NOT_HERE)


async def run_meter(
    me: Participant,
    upstream: str,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    window: int | None = None,
    on_call: Callable[[MeteredCall], None] | None = None,
    ready: Callable[[str], None] = lambda _url: None,
    allowed: Allowed = ONLY_OWN,
) -> None:
    """Join as `me`, relay to `upstream`, call `ready` with the relay's URL, and stay until the connection ends.

    The relay keeps working while the gateway is unreachable. Raises the errors of `serve_relay` and of joining.
    """
    meter = Meter(me, window=window, on_call=on_call)
    async with (
        serve_relay(
            upstream, MeasuredCalls(meter, receipts=meter.receipts), host=host, port=port, allowed=allowed
        ) as url,
        me,
    ):
        me.start_soon(meter.keep_reporting)
        ready(url)
        await me.run_forever()
