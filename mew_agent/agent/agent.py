"""An agent: a participant with a model. Builds its parts from the configuration and connects them to the space.

Owns the agent's lifetime, what it does with each envelope that arrives, and the sending of the statuses that the
conversation emits. Does not know which chats are for it, when agents talk in a loop, how a chat is answered or what is
in context.
"""

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Self

import anyio
import anyio.abc
from mew_protocol import kinds
from mew_protocol.context_report import SenderSpending
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.mcp import proposals_in
from mew_protocol.status_word import status_word

from mew_agent.agent.address_filter import AddressFilter
from mew_agent.agent.board_tools import BOARD_TOOLS, BoardTools
from mew_agent.agent.budgets import SenderBudgets
from mew_agent.agent.headroom import HeadroomCheck
from mew_agent.agent.inbox import Inbox
from mew_agent.agent.loop_guard import LoopGuard
from mew_agent.agent.peer_tools import RESOURCE_TOOLS, ResourceTools
from mew_agent.agent.recall import RECALL_TOOLS
from mew_agent.agent.reception import Reception
from mew_agent.agent.resources import CLOSE_SECONDS, AgentResources, check_provider, open_resources, store_limits
from mew_agent.agent.sessions import AgentSessions, ModelParts
from mew_agent.agent.turn import Turn
from mew_agent.config.agent_config import (
    AgentConfig,
    check_model_source,
    load_agent_config,
    refuse_misspelled_variables,
)
from mew_agent.context.sqlite_store import MemoryStore
from mew_agent.context.store import Store, StoredChat
from mew_agent.conversation.context_view import ContextView
from mew_agent.conversation.events import ContextEvent, ConversationEvent, StatusChanged
from mew_agent.conversation.model_calls import CALL_BOUND_SECONDS
from mew_agent.conversation.pins import PIN_TOOLS
from mew_agent.model.builtin import is_builtin
from mew_agent.model.interface import Model
from mew_agent.participant.listeners import call_handler
from mew_agent.participant.mcp_client import Timeouts
from mew_agent.participant.participant import Participant
from mew_agent.tokens.tokenizers import TextCounter
from mew_agent.tools.sources import OwnTools

logger = logging.getLogger("mew_agent.agent.agent")

ContextEventHandler = Callable[[ContextEvent], object]


class Agent(Participant):
    """Joins like a participant, answers chats with a model, and reports how full its context is after each call."""

    handlers_answer_chats = False

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
        """Create an agent from parts; see `from_config`.

        `call_bound_seconds` is how long a control waits for a running model call before it interrupts the call.
        `summariser` writes the summaries; None: the model itself. `counter` counts the model's tokens; None: the
        configured tokenizer. Raises `ConfigError` if the policy is invalid.
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
        self._sessions = AgentSessions(
            self,
            config,
            ModelParts(model, summariser, counter, call_bound_seconds),
            store or MemoryStore(store_limits(config)),
            OwnTools(self.toolbox, config.tool_timeout_seconds),
            *([BoardTools(self)] if config.board_tools else []),
            ResourceTools(self),
            reserved_names=self._reserved_tool_names,
            on_tools_left_out=self.show_tools_left_out,
        )
        self.discovery.on_tools_changed = self.tools_changed
        self.conversation, self.tools = self._sessions.main.conversation, self._sessions.main.tools
        self.control.conversation = self.conversation
        self.conversation.events.subscribe(self._on_conversation_event)
        self.context_view = ContextView(self.conversation)
        """How full the agent's own context is, and was."""
        self._context_handlers: list[ContextEventHandler] = []
        address_filter = AddressFilter(
            (config.name or config.id, config.id),
            config.answer_broadcasts,
            self.conversation.calls,
            self.tools.specs,
            purpose=config.system_prompt or "",
        )
        self._inbox = Inbox(config.id, address_filter, self.conversation.state.store, answers=config.auto_respond)
        self._resources: AgentResources | None = None
        self._headroom = HeadroomCheck(self, self.conversation, self._inbox)
        loops = LoopGuard(config.id, config.loop_limits)
        path = None if config.store is None else config.store.with_name(f"{config.store.name}~budgets")
        budgets = SenderBudgets(config.loop_limits.tokens_per_hour, path)
        address_filter.on_spent = budgets.record
        self._reception = Reception(self, self._inbox, loops, self._turn_for, self._headroom, budgets)
        self._was_joined = False

    @classmethod
    def from_config(cls, config: AgentConfig, model: Model | None = None) -> Self:
        """Create an agent with the session store of its configuration, and with its model unless `model` is given.

        Entering it loads the session; leaving it closes store and model. Raises `ConfigError` if the policy is invalid.
        """
        resources = open_resources(config, model)
        if model is None and is_builtin(config.base_url):
            config = config.model_copy(update={"model": resources.model.identity.model})
        agent = cls(config, resources.model, resources.store, summariser=resources.summariser)
        agent._resources = resources
        return agent

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] | None = None, *, model: str | Model | None = None, **settings: Any
    ) -> Self:
        """Create an agent from environment variables; `settings` (keys of `AgentConfig`) override them.

        Reads `MEW_GATEWAY`, `MEW_SPACE`, `MEW_PARTICIPANT_ID` and `MEW_TOKEN`, which `mew up` and `mew run` set,
        `OPENAI_API_KEY`, `OPENAI_BASE_URL` and `OPENAI_MODEL`, and `MEW_AGENT_CONFIG` (JSON with any keys). `model` is
        a name, or a `Model` of your own, which leaving the agent closes. `base_url="rehearsal"` and
        `base_url="local"` need no provider. Raises `ConfigError` that names what is missing, wrong or unknown.
        """
        own = None if isinstance(model, str) else model
        settings["model"] = own.identity.model if own is not None else model
        environ = os.environ if environ is None else environ
        refuse_misspelled_variables(environ, settings)
        config, notices = load_agent_config(flags=settings, environ=environ)
        for notice in notices:
            logger.warning("%s", notice)
        if own is None:
            check_model_source(config, where="environment")
        return cls.from_config(config, own)

    async def __aenter__(self) -> Self:
        """Join, and answer chats until the block ends.

        Raises the errors of joining, and `ConfigError` if the policy is for another provider.
        """
        await super().__aenter__()
        self.start_soon(self._sessions.discover_window)
        self.start_soon(self.session.run_until_ended, self._reception.answer_chats)
        return self

    async def before_join(self) -> None:
        """Load the conversations and the inbox. Raises `ConfigError` if the policy is for another provider."""
        await check_provider(self.config, self._model)
        if self._resources is not None:
            await self.conversation.load()
        await self._sessions.load()
        await self._reception.load()
        await self._headroom.count_queued()
        self.conversation.state.set_surroundings(waiting=self._reception.waits)

    async def after_leave(self) -> None:
        """Close the stores, and the model unless the program brought its own."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_SECONDS):
            await self._sessions.aclose()
        if self._resources is not None:
            await self._resources.aclose()

    def on_context_event(self, handler: ContextEventHandler) -> ContextEventHandler:
        """Decorator: call the function with each event of the agent's own context, such as `LevelChanged`.

        A plain `def` function runs in a thread. Each call runs as a separate task, so that a slow handler delays
        nothing. `on(LevelChanged)` receives one class of events instead, in order with all other events.
        """
        self._context_handlers.append(handler)
        return handler

    async def run(self) -> None:
        """Wait until the connection ends for good; the agent answers chats meanwhile.

        Raises the error that ended the connection or the work.
        """
        await self.run_forever()

    # -- what the participant and the conversation call --------------------------------------------------

    async def joined(self) -> None:
        """Send the status right after the welcome, and why if the connection was lost or the process was killed."""
        welcome = self.session.client.arrived.message
        assert isinstance(welcome, Envelope)
        self._headroom.mode = self._sessions.pin_space(welcome).would_fit
        self._sessions.staggered.restart()
        if self._was_joined:
            self.mcp.fail_closed_proposals({one.id for one in proposals_in(welcome.body)})
            self.start_soon(self.control.announce, status_word("rejoined"))
            return
        self._was_joined = True
        self.start_soon(self._reception.clean_up_after_earlier_process, welcome)
        if interrupted := tuple(chat.envelope.id for chat in self._inbox.interrupted):
            self.start_soon(self.control.announce, status_word("restarted"), interrupted)
        else:
            self.start_soon(self.control.announce)

    async def receive(self, envelope: Envelope) -> None:
        """Queue chats, and cancel what a participant cancels."""
        if envelope.kind == kinds.SYSTEM_PRESENCE and self.tool_waits:
            self.tools_changed()
        self._sessions.staggered.receive(envelope)
        await self._reception.receive(envelope)

    async def receive_past(self, envelope: Envelope) -> None:
        """Queue chats that were sent while no process of this agent ran; controls from that time are not obeyed."""
        await self._reception.receive_past(envelope)

    def waits_changed(self) -> None:
        """Report what the agent waits for, if that changed."""
        if not self.session.ended.is_set():
            self.start_soon(self._report_waits)

    def tools_changed(self) -> None:
        """Choose the tools of peers to offer again, so that people see at once what is left out."""
        if self._was_joined:
            self.tools.specs()

    def spent_for_changed(self, spent_for: tuple[SenderSpending, ...]) -> None:
        """Report what the agent spent for each sender, with its next status."""
        self.conversation.state.set_surroundings(spent_for=spent_for)

    async def _report_waits(self) -> None:
        waits = self._reception.waits
        if waits != self.conversation.tracker.waiting:
            self.conversation.state.set_surroundings(waiting=waits)
            await self.conversation.emit_status()

    async def close_streams(self, reason: str) -> None:
        """Close the stream of the running turn."""
        if self._reception.turn is not None:
            await self._reception.turn.close_stream(reason)

    async def _on_conversation_event(self, event: ConversationEvent) -> None:
        """Send a status to everyone; pass other events of the context on to handlers."""
        if isinstance(event, StatusChanged):
            await self.control.send(event.status, event.word)
        elif isinstance(event, ContextEvent):
            self.listeners.emit(None, event)
            for handler in self._context_handlers:
                self.start_soon(call_handler, handler, event)

    async def _turn_for(self, chat: StoredChat) -> Turn:
        session = await self._sessions.session_for(chat.envelope.sender, chat.envelope.body.get("session"))
        return Turn(
            participant=self,
            inbox=self._inbox,
            question=chat,
            shows_reasoning=self.config.reasoning_enabled,
            config=self.config,
            sessions=self._sessions,
            session=session,
        )

    def _reserved_tool_names(self) -> frozenset[str]:
        """Return the names of the agent's own tools, which no peer's tool may have."""
        own = (spec.name for spec in self.conversation.context_tools.specs())
        return frozenset((*self.toolbox.tools, *BOARD_TOOLS, *RESOURCE_TOOLS, *PIN_TOOLS, *RECALL_TOOLS, *own))


async def run_agent(config: AgentConfig) -> None:
    """Run an agent until it is shut down. Raises a `GatewayError` if the gateway refuses it or it is superseded."""
    await Agent.from_config(config).take_part()
