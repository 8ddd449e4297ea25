"""An ACP agent as a participant of a space.

Owns the engine: the program and its restarts, the session, and the order of prompts. A chat becomes a prompt (see
`acp_turn`), a permission request becomes a proposal, and `participant/compact` becomes the agent's own command.
`profiles` defines the meaning of its figures, `acp_figures` their validity.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import anyio
from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.json_values import object_at, objects_at, texts_in
from mew_protocol.payloads.mcp import CallSubject
from mew_protocol.payloads.participant import Compact, CompactDone
from mew_protocol.payloads.system import SpaceFacts
from mew_protocol.status_word import StatusWord, status_word
from mew_settings.backoff import Backoff
from pydantic import TypeAdapter

from mew_agent.agent.address_filter import AddressFilter
from mew_agent.agent.engine import Engine
from mew_agent.agent.runtime import AgentRuntime
from mew_agent.context.message_facts import MessageKey
from mew_agent.context.sqlite_store import MemoryStore, SqliteStore, Store
from mew_agent.context.store import StoredChat
from mew_agent.errors import GatewayError, MewAgentError, NotPermitted, PeerError, first_cause
from mew_agent.participant.messenger import timestamp
from mew_agent.participant.participant import Participant
from mew_agent.participant.reasoning_stream import Reasoning
from mew_agent.parts.acp.acp_figures import (
    AgentUsage,
    UnreportedCompactions,
    UsageTracker,
    compaction_step,
    spending_in,
    usage_in,
    window_in,
)
from mew_agent.parts.acp.acp_session import AcpFailed, AcpSession, SignInNeeded, open_session
from mew_agent.parts.acp.acp_turn import AcpAnswer, text_in
from mew_agent.parts.acp.modes import reported_mode
from mew_agent.parts.acp.profiles import UNKNOWN, AcpProfile, CompactionStep, profile_for
from mew_agent.parts.acp.settings import AcpConfig, KeptSession
from mew_agent.tools.catalog import INVALID_REQUEST, RequestFailed

logger = logging.getLogger("mew_agent.parts.acp")


KEPT_AS: Final = "acp session"
_KEPT: Final = TypeAdapter(KeptSession)
PERMISSION: Final = "permission"
"""The tool that a permission request proposes to call."""

GO_ON: Final = "Your context was compacted while you worked on the last message. Go on with it where you stopped."
AGAIN: Final = "(You were restarted while you worked on this message. Go on where you stopped.)\n"

COMMANDS_SECONDS: Final = 5.0
"""How long a compaction waits for an agent that has just started to announce its commands."""


class AcpEngine(Engine):
    """One session of an ACP agent, answering for the participant `me`."""

    def __init__(self, me: Participant, settings: AcpConfig, first_pause_seconds: float) -> None:
        context = me.external_context
        super().__init__(me, settings.compact_at_percent)
        self.settings = settings
        self.mcp_servers: Sequence[Mapping[str, Any]] = ()
        """The MCP servers of its session, as `session/new` has them."""
        self.profile: AcpProfile = UNKNOWN
        self.store: Store = MemoryStore() if settings.store is None else SqliteStore(Path(settings.store))
        self.answer: AcpAnswer | None = None
        """The answer that is being made."""
        self.restarts = Backoff(first_pause_seconds)
        self._usage = UsageTracker(UNKNOWN)
        self._unreported = UnreportedCompactions()
        self._window: int | None = None
        self._session: AcpSession | None = None
        self._kept: KeptSession | None = None
        """The session to continue."""
        self._session_ready = anyio.Event()
        self._commands: tuple[str, ...] = ()
        self._commands_known = anyio.Event()
        self._one_prompt = anyio.Lock()
        self._interruptible: anyio.CancelScope | None = None
        """The running prompt of a chat."""
        self._questions: set[anyio.CancelScope] = set()
        """The permission requests that await a decision."""
        self._entered: MessageKey | None = None
        """The chat that the newest figure counts."""
        self._failure: str | None = None
        """Why the program is no longer started."""
        context.shows_level = False
        context.handler_timeout_seconds = settings.compact_seconds
        me.on_compact(self._compact)
        me.on_clear(self._clear)
        me.mcp_server.own_requests = self._answer_decision

    async def load(self) -> None:
        """Load the inbox and the session."""
        await self.store.load()  # renames a damaged file
        kept = await self.store.value(KEPT_AS, _KEPT)
        if kept is None or not kept.is_of(self.settings):
            return
        self._kept = kept
        if kept.tokens is not None and kept.measured_at is not None:
            self.external.report(
                kept.tokens, basis="agent_reported", now=timestamp(), measured_at=kept.measured_at, window=kept.window
            )
            self.external.forget_figures("restarted")

    def joined(self, facts: SpaceFacts) -> StatusWord | None:
        """See `Engine`: the program may still be starting."""
        return status_word("starting") if self._session is None else None

    async def aclose(self) -> None:
        """Close the store of the inbox."""
        await self.store.aclose()

    async def _keep_session(self) -> None:
        if self._session is None:
            return
        figures = self.external.figures
        self._kept = KeptSession(
            session_id=self._session.session_id,
            program=self.settings.program,
            cwd=self.settings.cwd,
            tokens=figures.tokens if figures is not None else None,
            window=figures.window if figures is not None else None,
            measured_at=figures.measured_at if figures is not None else None,
        )
        await self.store.keep_value(KEPT_AS, self._kept.model_dump(mode="json"))

    # -- the program -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the agent's program until we leave, and start it again when it ends, within limits."""
        while True:
            started_at = anyio.current_time()
            try:
                await self._run_session()
            except* Exception as group:
                cause = first_cause(group)
                problem = str(cause) or type(cause).__name__
                end = status_word("failed", problem)
                if isinstance(cause, SignInNeeded):
                    end = status_word("sign_in_needed", cause.ways)
            finally:
                self._forget_session()
            logger.warning("%s", problem)
            self.external.forget_figures("restarted")
            pause_seconds = self.restarts.failed(anyio.current_time() - started_at)
            if self.restarts.failures > self.settings.max_restarts:
                await self.me.control.announce(end)
                if self.answer is not None:
                    self.answer.fail(problem)
                self._failure = problem
                self._session_ready.set()
                return
            await self.me.control.announce(status_word("restarting", problem))
            await anyio.sleep(pause_seconds)

    async def _run_session(self) -> NoReturn:
        """Run the program and its session until it ends. Raises `AcpFailed` with the reason."""
        async with open_session(
            self.settings,
            self._receive_update,
            self._ask_permission,
            self._request_ended,
            session_id=None if self._kept is None else self._kept.session_id,
            mcp_servers=self.mcp_servers,
        ) as session:
            self.profile = profile_for(self.settings.agent, session.name)
            self.external.shows_level = self.profile.used is not None
            self.external.measure = self.profile.used
            self._usage = UsageTracker(self.profile)
            self._window = window_in(session.opened)
            self._session = session
            if not session.was_loaded:
                self.external.on_changed("gone")  # the new session has no earlier messages
            self._note_mode()
            await self._keep_session()
            logger.info("%s %s is ready", session.name or self.settings.program[0], session.version)
            self._session_ready.set()
            await self.me.control.announce(status_word("ready"))
            await session.ended.wait()
            self._forget_session()  # its end takes time, and the next chat must wait for the next start
        raise AcpFailed(session.program.name, await session.end_reason(), session.program.stderr_tail)

    def _forget_session(self) -> None:
        before, self._session, self._session_ready = self._session_ready, None, anyio.Event()
        before.set()
        run = self.external.compacting
        if run.trigger == "agent":
            run.end(CompactDone.as_skipped("failed"))
        run.note_step("failed")

    async def _ready_session(self) -> AcpSession:
        """Wait until the session is ready. Raises `MewAgentError` if no further start follows."""
        while self._session is None or self._session.ended.is_set():
            if self._failure is not None:
                raise MewAgentError(self._failure)
            await self._session_ready.wait()
        return self._session

    # -- chats -------------------------------------------------------------------------------------------

    async def answering(self, question: StoredChat, reasoning: Reasoning) -> AcpAnswer:
        """See `Engine`."""
        turn_seconds, after = self.settings.turn_seconds, self._after_answer
        self.answer = AcpAnswer(question, reasoning, self._prompt_turn, turn_seconds, self.agent, after)
        return self.answer

    async def _after_answer(self) -> None:
        self.answer = None
        await self.external.compact_if_full()

    def has_read(self, chat: StoredChat) -> bool:
        """See `Engine`: the newest figure includes the chat."""
        return MessageKey.of(chat.envelope) == self._entered

    async def _prompt_turn(self, text: str, is_repeated: bool) -> Mapping[str, Any]:
        """Send a prompt of the conversation; after a compaction that interrupts it, send a prompt to continue."""
        while True:
            async with self._one_prompt:
                session = await self._ready_session()
                if is_repeated and session.was_loaded:
                    text, is_repeated = f"{AGAIN}{text}", False
                with anyio.CancelScope() as self._interruptible:
                    self._usage.turn_started(is_main=True)
                    self._unreported.turn_started()
                    try:
                        return await session.prompt(text, self._withdraw_questions)
                    finally:
                        self._interruptible = None
            text = GO_ON  # the interrupting compaction waited for the lock, and has ended

    @property
    def _is_answering(self) -> bool:
        """Whether a prompt of the conversation runs. Updates without one repeat an earlier session."""
        return self._interruptible is not None

    async def _request_ended(self, result: Mapping[str, Any]) -> None:
        """Report the usage at the end of a turn. A turn that failed or was cancelled may have none."""
        if not self._is_answering:
            return
        reason, run = result.get("stopReason"), self.external.compacting
        usage = self._usage.turn_ended(is_abandoned=reason == "cancelled")
        if self._usage.was_measurable and run.trigger == "agent":
            await run.finish(CompactDone.as_skipped("the agent did not report its end"))
        if usage is not None:
            await self._report(usage)
        elif self._usage.was_measurable and not self.profile.usage_is_late and reason not in (None, "cancelled"):
            self.external.forget_figures("usage_unavailable")
            await self.me.control.announce()

    # -- what the agent says -----------------------------------------------------------------------------

    async def _receive_update(self, update: Mapping[str, Any]) -> None:
        await self._note_figures(update)
        if self._note_mode():
            await self.me.control.announce()
        await self._note_compaction(update)
        if update.get("sessionUpdate") == "available_commands_update":
            listed = objects_at(update, "availableCommands")
            self._commands = tuple(str(one.get("name")).lstrip("/") for one in listed)
            self._commands_known.set()
        elif update.get("sessionUpdate") == "plan":
            await self.me.control.announce(_plan_status(update))
        elif self.answer is not None and self._is_answering:
            await self.answer.receive(update)

    async def _note_figures(self, update: Mapping[str, Any]) -> None:
        context = self.external
        context.spending = spending_in(update) or context.spending
        if (usage := usage_in(update, self.profile)) is not None:
            context.note_size(usage.tokens)
            if (now := self._usage.reported(usage)) is not None:
                await self._report(now)
                self.me.start_soon(self.external.compact_if_full)

    async def _note_compaction(self, update: Mapping[str, Any]) -> None:
        run = self.external.compacting
        has_compacted = self.profile.compacts_unreported and self._is_answering and self._unreported.has_ended(update)
        if has_compacted and not run.is_running:
            run.begin("agent")
            await run.finish(CompactDone(status="compacted"))
        if (step := compaction_step(update, self.profile)) is not None:
            await self._follow_compaction(step)

    async def _follow_compaction(self, step: CompactionStep) -> None:
        """Note the progress of a compaction; report it if the agent started it."""
        run = self.external.compacting
        run.note_step(step)
        match step:
            case "started":
                self._usage.compacted()
                if not run.is_running:
                    run.begin("agent")
                    await run.announce_begin()
            # Some agents report an end twice.
            case "completed" if run.trigger == "agent":
                await run.finish(CompactDone(status="compacted"))
            case "failed" if run.trigger == "agent":
                await run.finish(CompactDone.as_skipped("the agent reported a failure"))
            case _:
                pass

    def _note_mode(self) -> bool:
        """Note the mode of the session. Returns whether the report changes."""
        mode = None if self._session is None else self._session.mode
        if mode is None:
            return False
        before, settings = self.external.mode, self.settings
        asks_always = settings.asks_by_environment
        now = reported_mode(mode, self.profile, settings.mode, asks_always=asks_always)
        self.external.mode = now
        if now != before and now.asks is False:
            logger.warning("acts without asking: mode '%s'", mode)
        return now != before

    async def _report(self, usage: AgentUsage) -> None:
        if self.answer is not None:
            self._entered = MessageKey.of(self.answer.chat)
            await self.agent.count_queued()
            if self.profile.used == "prompt":
                size = await self.sizes.measure("".join(self.answer.texts))
                self.external.reply_tokens = self.calibration.wrap(size.tokens(self.calibration))
        self.external.report(
            usage.tokens,
            basis="provisional" if usage.is_abandoned else "agent_reported",
            now=timestamp(),
            window=usage.window or self._window,
        )
        await self.me.control.announce()
        await self._keep_session()

    # -- controls ----------------------------------------------------------------------------------------

    async def _compact(self, request: Compact) -> CompactDone:
        """Send the agent's own command, after or during the running turn. The answer contains failures."""
        try:
            return await self._send_compact_command(request)
        except MewAgentError as error:
            return CompactDone.as_skipped(str(error))

    async def _send_compact_command(self, request: Compact) -> CompactDone:
        await self._ready_session()
        with anyio.move_on_after(COMMANDS_SECONDS):
            await self._commands_known.wait()
        announced = (name for name in self.profile.compact_commands if name in self._commands)
        command = next(announced, self.profile.hidden_command)
        if command is None:
            return CompactDone.as_skipped("not_supported")
        if request.interrupt and self._interruptible is not None:
            self._interruptible.cancel()
        async with self._one_prompt:
            session = await self._ready_session()
            self._usage.turn_started(is_main=False)
            self._usage.compacted()
            run = self.external.compacting
            run.note_step(None)
            response = await session.prompt(f"/{command}", self._withdraw_questions)
            await run.wait_until(lambda: run.step != "started")  # some agents compact after their response
        if response.get("stopReason") == "cancelled":
            return CompactDone.as_skipped("cancelled")
        if run.step == "failed":
            return CompactDone.as_skipped("failed")
        return CompactDone(status="compacted")

    async def _clear(self) -> None:
        """Begin a new session, after the running turn."""
        async with self._one_prompt:
            session = await self._ready_session()
            self._usage.compacted()
            await session.renew()
            self._note_mode()
            await self._keep_session()

    # -- permissions -------------------------------------------------------------------------------------

    async def _ask_permission(self, request: Mapping[str, Any]) -> str | None:
        """Propose the call that the agent asks about. Returns the option to choose; None without a timely decision."""
        params = {"name": PERMISSION, "arguments": _asked_call(object_at(request, "toolCall"))}
        decision, scope = None, anyio.CancelScope()
        self._questions.add(scope)
        try:
            with scope:
                decision = await self.me.mcp.propose_to_self(
                    params, tuple(self.me.peers), self.settings.permission_seconds
                )
        except (NotPermitted, GatewayError, PeerError) as error:
            logger.warning("could not ask for permission: %s", error)
        finally:
            self._questions.discard(scope)
        if scope.cancelled_caught:
            return None
        # The agent runs its original call, so an approval of a changed call allows nothing.
        is_allowed = (
            decision is not None and decision.kind == kinds.MCP_REQUEST and self.me.mcp.is_as_proposed(decision)
        )
        wanted = "allow_once" if is_allowed else "reject_once"
        options = objects_at(request, "options")
        # Without an option of this kind, None cancels the agent's call.
        return next((str(one.get("optionId")) for one in options if one.get("kind") == wanted), None)

    def _withdraw_questions(self) -> None:
        """Withdraw the open permission requests, because their turn is cancelled."""
        for scope in tuple(self._questions):
            scope.cancel()

    async def _answer_decision(self, request: Envelope) -> dict[str, Any] | None:
        """Return the result of a request that fulfils a permission proposal; None for other requests.

        Raises `RequestFailed` if the proposal is decided or unknown, or if the request changes the call.
        """
        if CallSubject.read(request.body).tool != PERMISSION:
            return None
        decision = self.me.mcp.decision_before(request)
        if decision is None or decision.id != request.id:  # some gateways do not refuse a second decision
            raise RequestFailed(INVALID_REQUEST, "no decision is needed: the proposal was decided, or never made")
        if not self.me.mcp.is_as_proposed(request):
            problem = f"rejected: '{self.me.id}' runs the call as it proposed it; approve it without changes"
            raise RequestFailed(INVALID_REQUEST, problem)
        return {"content": [{"type": "text", "text": "Allowed."}]}


class AcpAgent(Participant):
    """An ACP agent as a participant: `async with AcpAgent(...)` joins, starts the program and answers chats."""

    handlers_answer_chats = False

    def __init__(
        self,
        settings: AcpConfig,
        gateway: str,
        *,
        space: str,
        id: str,  # noqa: A002 - the wire's word
        token: str,
        first_connect_seconds: float = 10.0,
        first_pause_seconds: float = 1.0,
    ) -> None:
        super().__init__(
            gateway,
            space=space,
            id=id,
            token=token,
            first_connect_seconds=first_connect_seconds,
            discover=settings.space_tools,
        )
        self.engine = engine = AcpEngine(self, settings, first_pause_seconds)
        chosen, limits = AddressFilter((id,), "rules" if settings.answer_broadcasts else "never"), settings.loop_limits
        AgentRuntime(self, engine, engine.store, chosen, limits, max_compacting=settings.max_compacting)


def _asked_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the call that the agent asks about: its input, and its texts and changes outside the input.

    Some agents have the command or the change only there.
    """
    known = frozenset(texts_in(call.get("rawInput")))
    contents = objects_at(call, "content")
    arguments = {
        "tool": str(call.get("title") or call.get("kind") or "a tool"),
        "kind": call.get("kind"),
        "input": call.get("rawInput"),
        "text": "\n".join(_unknown_texts(contents, known)),
        "changes": list(_unknown_changes(contents, known)),
        "locations": call.get("locations"),
    }
    return {key: one for key, one in arguments.items() if one}


def _unknown_texts(contents: Sequence[Mapping[str, Any]], known: frozenset[str]) -> Iterator[str]:
    for one in contents:
        text = text_in(one.get("content")) or str(one.get("path") or "")
        if text and text not in known:
            yield text


def _unknown_changes(contents: Sequence[Mapping[str, Any]], known: frozenset[str]) -> Iterator[dict[str, Any]]:
    for one in contents:
        change = {key: one.get(key) for key in ("path", "oldText", "newText")}
        if one.get("type") == "diff" and not known.issuperset(filter(None, change.values())):
            yield change


def _plan_status(update: Mapping[str, Any]) -> StatusWord:
    entries = objects_at(update, "entries")
    done = sum(one.get("status") == "completed" for one in entries)
    now = next((str(one.get("content")) for one in entries if one.get("status") == "in_progress"), "")
    return status_word("plan", f"{done} of {len(entries)} done{f'; {now[:120]}' if now else ''}")
