"""An agent: a participant that thinks. Puts the parts together and answers one chat after the other.

Owns the life from configuration to shutdown. It does not know which chats are for it, how a turn goes or what is in
context.
"""

import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.abc
from mew_protocol import kinds
from mew_protocol.agent_settings import REHEARSAL
from mew_protocol.envelope import Envelope

from mew_agent.agent.address_filter import Concerns
from mew_agent.agent.board_tools import BOARD_TOOLS, BoardTools, context_line
from mew_agent.agent.inbox import Inbox, is_about
from mew_agent.agent.maintenance import keep_up
from mew_agent.agent.peer_resources import RESOURCE_TOOLS, ResourceTools
from mew_agent.agent.peer_tools import PeerTools
from mew_agent.agent.recall import RECALL_RESULT, RecallTools
from mew_agent.agent.resources import Parts, check_provider, parts_of
from mew_agent.agent.turn import Turn
from mew_agent.config.agent_config import AgentConfig, check_model_source, chosen_policy, load_agent_config
from mew_agent.context.history import History
from mew_agent.context.store import MemoryStore, Store
from mew_agent.context.tracker import Tracker
from mew_agent.context.window import resolve_window
from mew_agent.conversation.context_view import ContextGauge
from mew_agent.conversation.conversation import CALL_BOUND_SECONDS, Conversation
from mew_agent.conversation.events import ContextEvent
from mew_agent.conversation.prompts import DEFAULT_SYSTEM_PROMPT
from mew_agent.errors import GatewayError, MewAgentError, NotPermitted
from mew_agent.model.interface import Model
from mew_agent.participant.mcp_client import Timeouts
from mew_agent.participant.participant import Participant
from mew_agent.tokens.tokenizers import TextCounter, chosen_counter
from mew_agent.tools.bounds import ResultBound
from mew_agent.tools.sources import AgentTools, OwnTools

logger = logging.getLogger("mew_agent.agent.agent")

ContextEventHandler = Callable[[ContextEvent], Coroutine[Any, Any, None]]

DISCOVERY_SECONDS = 5.0
"""How long an answer may wait for peers that were never asked what they offer; each delays one answer at most."""

NO_WINDOW = "the context window of '{model}' is not known; `context_token_limit` tells it"

MAX_LATER_QUESTIONS = 2
"""How often a server that did not tell a loaded window is asked again after an answer."""


class Agent(Participant):
    """Joins like a participant, answers chats with a model, and reports how full its context is after each call."""

    def __init__(
        self,
        config: AgentConfig,
        model: Model,
        store: Store | None = None,
        *,
        call_bound_seconds: float = CALL_BOUND_SECONDS,
        first_connect_seconds: float = 10.0,
        summariser: Model | None = None,
        counter: TextCounter | None = None,
    ) -> None:
        """`call_bound_seconds` is how long a control waits for a running model call before it is cancelled.

        `summariser` writes the summaries; None: the model itself. `counter` counts the model's tokens; None: what the
        configuration says of tokenizers. Raises `ConfigError` for a policy that is none.
        """
        super().__init__(
            config.gateway,
            space=config.space,
            id=config.id,
            token=config.token,
            first_connect_seconds=first_connect_seconds,
            discover=config.discover_tools,
            timeouts=Timeouts(config.peer_timeout_seconds, config.proposal_timeout_seconds),
        )
        self.config = config
        self._model = model
        self._name = config.name or config.id
        self.tools = AgentTools(OwnTools(self.toolbox, config.tool_timeout_seconds))
        chosen = chosen_policy(config)
        self._window_is_configured = chosen.limit_tokens is not None
        tracker = Tracker(
            history=History(),
            policy=chosen.policy,
            window=resolve_window(chosen.limit_tokens),
            model=config.model,
        )
        self.conversation = Conversation(
            model,
            tracker,
            store or MemoryStore(),
            system_prompt=config.system_prompt or DEFAULT_SYSTEM_PROMPT.format(name=self._name),
            tools=self.tools.specs,
            announce=self._announce,
            keep_newest_items=config.conversation_history_length,
            call_bound_seconds=call_bound_seconds,
            result_bound=ResultBound(config.max_result_tokens, config.long_results),
            summariser=summariser,
            load_counter=lambda: counter or chosen_counter(config.tokenizer, config.tokenizer_settings),
            windows=config.windows,
        )
        self.conversation.events.listeners.append(lambda event: self.listeners.emit(None, event))
        concerns = Concerns(
            (self._name, config.id),
            config.answer_broadcasts,
            self.conversation,
            self.tools.specs,
            about=config.system_prompt or "",
        )
        self._inbox = Inbox(config.id, concerns, answers=config.auto_respond)
        self.gauge = ContextGauge(self.conversation)
        self._parts: Parts | None = None
        offered = self.conversation.remedies.offers_reminders if config.reminders is None else config.reminders
        if offered:
            self.tools.add(self.conversation.context_tools)
        if config.board_tools:
            self.tools.add(BoardTools(self))
        self.tools.add(RecallTools(self.conversation.transcript))
        self.tools.add(ResourceTools(self))
        self.tools.add(PeerTools(self, self._names_of_others))
        self.control.conversation = self.conversation
        self._turn: Turn | None = None
        self._later_questions = 0
        self._was_joined = False

    @classmethod
    def of(cls, config: AgentConfig) -> Self:
        """An agent with the model and the session that its configuration names; leaving it closes them.

        Its session is taken up when it is entered. Raises `ConfigError` for a policy that is none.
        """
        if config.base_url == REHEARSAL:
            config = config.model_copy(update={"model": REHEARSAL})
        parts = parts_of(config)
        agent = cls(config, parts.model, parts.store, summariser=parts.summariser)
        agent._parts = parts
        return agent

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, **settings: Any) -> Self:
        """The agent that the environment names, with `settings` of yours (the keys of `AgentConfig`) above it.

        The environment is `MEW_GATEWAY`, `MEW_SPACE`, `MEW_PARTICIPANT_ID` and `MEW_TOKEN`, which `mew up` and
        `mew run` set, `OPENAI_API_KEY`, `OPENAI_BASE_URL` and `OPENAI_MODEL`, and `MEW_AGENT_CONFIG` (JSON of any
        keys). `base_url="rehearsal"` thinks without a provider. Raises `ConfigError` naming what is missing or wrong.
        """
        config, notices = load_agent_config(flags=settings, environ=os.environ if environ is None else environ)
        for notice in notices:
            logger.warning("%s", notice)
        check_model_source(config, where="environment")
        return cls.of(config)

    async def __aenter__(self) -> Self:
        """Join. Raises what joining raises, and `ConfigError` for a policy that is for another provider than ours."""
        try:
            await check_provider(self.config, self._model)
            if self._parts is not None:
                await self.conversation.load()
            return await super().__aenter__()
        except BaseException:
            if self._parts is not None:
                await self._parts.aclose()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return await super().__aexit__(kind, error, trace)
        finally:
            if self._parts is not None:
                await self._parts.aclose()

    async def take_part(self) -> None:
        """Join, answer until the connection ends for good, and leave: a whole program is `run(me.take_part)`.

        Raises what joining raises, `ConfigError`, and the `GatewayError` that ended it.
        """
        async with self:
            await self.run()

    def on_context_event(self, handler: ContextEventHandler) -> ContextEventHandler:
        """Decorator: call the function with all that happens to our own context: levels, redlines, clears, compactions.

        `on(LevelChanged)`, `on(ContextCompacted)` and so on hear one of them, in order with everything else. Here each
        call runs beside the answer that it is about, so that a slow handler holds nothing up.
        """
        self.conversation.events.listeners.append(lambda event: self.start_soon(handler, event))
        return handler

    async def run(self) -> None:
        """Answer chats until the connection ends for good. Raises the `GatewayError` that ended it."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._discover_window)
            tasks.start_soon(self._answer_chats)
            await self.until_ended()
            tasks.cancel_scope.cancel()
        await self.run_forever()  # outside the task group, which would wrap what it raises

    # -- what arrives ------------------------------------------------------------------------------------

    async def joined(self) -> None:
        """Right after the welcome everybody learns how full we are; after a lost connection, also that it was lost."""
        self.start_soon(self._announce, "rejoined" if self._was_joined else None)
        self._was_joined = True

    async def receive(self, envelope: Envelope) -> None:
        """Sort what arrives: chats to answer, chats to remember, cancellations."""
        if envelope.sender == self.id:
            return
        turn = self._turn
        match envelope.kind:
            case kinds.CHAT:
                told = self._inbox.take(envelope, is_busy=turn is not None or self.control.is_paused)
                if told is not None:
                    self.start_soon(self._acknowledge, envelope, told)
            case kinds.CHAT_CANCEL:
                self._inbox.take_back(envelope)
                if turn is not None and is_about(envelope, turn.chat):
                    turn.cancel(_why(envelope))
            case kinds.REASONING_CANCEL if turn is not None and turn.reasoning_id is not None:
                if envelope.context == turn.reasoning_id:
                    turn.cancel(_why(envelope))
            case _:
                return

    # -- work --------------------------------------------------------------------------------------------

    async def _answer_chats(self) -> None:
        while True:
            chat = await self._inbox.next(self.control.until_active)
            self._turn = self._turn_for(chat)
            try:
                await self._answer(self._turn)
            except (GatewayError, NotPermitted) as error:
                logger.warning("an answer to '%s' was not sent: %s", chat.sender, error)
            except Exception:  # one chat must not end the others
                logger.exception("the work on a chat of '%s' failed", chat.sender)
            finally:
                self._turn = None

    def _turn_for(self, chat: Envelope) -> Turn:
        return Turn(
            self,
            self.conversation,
            self.tools,
            chat,
            max_iterations=self.config.max_iterations,
            show_reasoning=self.config.reasoning_enabled,
            max_seconds=self.config.max_turn_seconds,
            prefix=f"{context_line(self.control.status())}\n\n" if self.config.context_line else "",
        )

    async def _answer(self, turn: Turn) -> None:
        """Answer one chat, after what was said around it was heard, and put the context in order behind it."""
        for remark in self._inbox.overheard():
            text = str(remark.body["text"])
            await self.conversation.transcript.hear(text, sender=remark.sender, envelope_id=remark.id)
        await self.discovery.wait_for_first_answers(DISCOVERY_SECONDS)
        if self.conversation.lacks_window:
            await self._discover_window()
        had_trouble = self.conversation.trouble is not None
        await turn.run()
        if self._may_tell_its_window_now(had_trouble=had_trouble):
            await self._discover_window()
        await self.conversation.settle()
        if self.config.upkeep and not self._inbox and not self.control.is_paused:
            await keep_up(self.conversation, max_iterations=self.config.max_iterations)

    def _names_of_others(self) -> frozenset[str]:
        """Names of tools that no peer's tool may have."""
        own = (spec.name for spec in self.conversation.context_tools.specs())
        return frozenset((*self.toolbox.tools, *BOARD_TOOLS, *RESOURCE_TOOLS, RECALL_RESULT, *own))

    async def _acknowledge(self, chat: Envelope, status: str) -> None:
        if self.may_send(kinds.CHAT_ACKNOWLEDGE):
            await self.send(kinds.CHAT_ACKNOWLEDGE, {"status": status}, to=(chat.sender,), correlation_id=(chat.id,))

    async def _close_streams(self, reason: str) -> None:
        if self._turn is not None:
            await self._turn.close_stream(reason)

    async def _announce(self, word: str | None = None) -> None:
        await self.control.announce(word)

    def _may_tell_its_window_now(self, *, had_trouble: bool) -> bool:
        """A server that was down or still loading knows its window later; some load a model only when it is called."""
        if self.conversation.trouble is not None or self.conversation.tracker.window.basis in ("configured", "loaded"):
            return False
        if had_trouble:
            return True
        self._later_questions += 1
        return self._later_questions <= MAX_LATER_QUESTIONS

    async def _discover_window(self) -> None:
        """Ask the model's server how large its window is, unless the user said so."""
        if self._window_is_configured:
            return
        try:
            window = await self._model.discover_window()
        except MewAgentError as error:
            logger.info("the model's server did not tell its window: %s", error)
            window = None
        if window is not None:
            await self.conversation.window_found(window)
        elif self.conversation.lacks_window:
            await self._announce(f"policy_stopped:{NO_WINDOW.format(model=self.config.model)}")


def _why(cancel: Envelope) -> str:
    return str(cancel.body.get("reason") or f"cancelled by {cancel.sender}")


async def run_agent(config: AgentConfig) -> None:
    """Run an agent until it is shut down. Raises a `GatewayError` when the gateway refuses it or it was superseded."""
    await Agent.of(config).take_part()
