"""An agent: a participant with a model. Builds its parts from the configuration and connects them.

`AgentRuntime` receives chats and follows the events of the conversation, `ConversationEngine` answers.
"""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Self, overload

from mew_settings.plugins import load_table

from mew_agent.agent.address_filter import AddressFilter
from mew_agent.agent.runtime import AgentRuntime
from mew_agent.agent.sessions import AgentResources, ConversationEngine, open_resources, store_limits
from mew_agent.config.agent_config import (
    AgentConfig,
    check_model_source,
    load_agent_config,
    refuse_misspelled_variables,
)
from mew_agent.context.sqlite_store import MemoryStore, Store
from mew_agent.conversation.context_view import ContextView
from mew_agent.conversation.conversation_events import ContextEvent, ConversationEvent
from mew_agent.conversation.model_calls import CALL_BOUND_SECONDS
from mew_agent.model.builtin import is_builtin
from mew_agent.model.interface import Model
from mew_agent.participant.event_handlers import call_handler
from mew_agent.participant.mcp_client import Timeouts
from mew_agent.participant.participant import Participant
from mew_agent.tokens.tokenizers import TextCounter
from mew_agent.tools.sources import OwnTools

logger = logging.getLogger("mew_agent.agent.agent")

_UNPLACED: Final = "unplaced"
_WITHOUT_PLACE: Final = {"gateway": "ws://unplaced", "space": _UNPLACED, "token": _UNPLACED}
"""In the place of settings that an agent gets when it is added to a space."""

TOOL_SOURCES: Final = "mew_agent.tool_sources"
"""The table of further tools for models: called with the agent and its settings. Returns a `ToolSource`, or None."""

ContextEventHandler = Callable[[ContextEvent], object]


class Agent(Participant):
    """Joins like a participant, answers chats with a model, and reports how full its context is after each call."""

    handlers_answer_chats = False

    @overload
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
    ) -> None: ...

    @overload
    def __init__(self, config: str, model: str | Model | None = None, **settings: Any) -> None: ...

    def __init__(
        self,
        config: AgentConfig | str,
        model: Model | str | None = None,
        store: Store | None = None,
        *,
        call_bound_seconds: float = CALL_BOUND_SECONDS,
        first_connect_seconds: float = 10.0,
        summariser: Model | None = None,
        counter: TextCounter | None = None,
        **settings: Any,
    ) -> None:
        """Create an agent from its id, for `Space.add`: `Agent("coder", "gpt-5.2", system_prompt="You write code.")`.

        `settings` are keys of `AgentConfig`. The environment variables of the model also apply; see `from_environment`.
        Raises `ConfigError`.

        Or create it from parts; see `from_config`. `call_bound_seconds` is how long a control waits for a running model
        call before it interrupts the call. `summariser` writes the summaries; None: the model itself. `counter` counts
        the model's tokens; None: the configured tokenizer. Raises `ConfigError` if the policy is invalid.
        """
        is_owner = isinstance(config, str)
        if isinstance(config, str):
            given = {"id": config, **_WITHOUT_PLACE, "store": store, "summariser": summariser, **settings}
            config, opened = _with_resources(*_configured(given, model, os.environ))
            resources = replace(opened, counter=counter, call_bound_seconds=call_bound_seconds)
        else:
            assert model is not None
            assert not isinstance(model, str)
            store = store or MemoryStore(store_limits(config))
            resources = AgentResources(model, store, summariser, counter, call_bound_seconds)
        is_placed = config.token != _UNPLACED
        gateway, space, token = (config.gateway, config.space, config.token) if is_placed else (None, None, None)
        super().__init__(
            gateway,
            space=space,
            id=config.id,
            token=token,
            first_connect_seconds=first_connect_seconds,
            discover=config.discover_tools,
            timeouts=Timeouts(config.peer_timeout_seconds, config.proposal_timeout_seconds),
        )
        self.config = config
        self._sessions = engine = ConversationEngine(
            self,
            config,
            resources,
            OwnTools(self.toolbox, config.tool_timeout_seconds),
            *filter(None, (make(self, config) for make in load_table(TOOL_SOURCES).values())),
            on_tools_left_out=self.show_tools_left_out,
        )
        engine.owns_resources = is_owner
        self.discovery.on_tools_changed = self._tools_changed
        self.conversation, self.tools = engine.main.conversation, engine.main.tools
        self.control.conversation = self.conversation
        self.context_view = ContextView(self.conversation)
        """How full the agent's own context is, and was."""
        address_filter = AddressFilter(
            (config.name or config.id, config.id),
            config.answer_broadcasts,
            self.conversation.calls,
            self.tools.specs,
            answers=config.auto_respond,
            purpose=config.system_prompt or "",
        )
        self._runtime = AgentRuntime(
            self,
            engine,
            self.conversation.state.store,
            address_filter,
            config.loop_limits,
            shows_reasoning=config.reasoning_enabled,
            max_question_age_seconds=config.max_question_age_seconds,
            max_compacting=config.max_compacting,
            between_steps=config.between_steps,
            together=config.together,
        )
        self.conversation.events.subscribe(self._runtime.receive_event)

    @classmethod
    def from_config(cls, config: AgentConfig, model: Model | None = None) -> Self:
        """Create an agent with the session store of its configuration, and with its model unless `model` is given.

        Entering it loads the session; leaving it closes store and model. Raises `ConfigError` if the policy is invalid.
        """
        config, resources = _with_resources(config, model)
        agent = cls(config, resources.model, resources.store, summariser=resources.summariser)
        agent._sessions.owns_resources = True
        return agent

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] | None = None, *, model: str | Model | None = None, **settings: Any
    ) -> Self:
        """Create an agent from environment variables; `settings` (keys of `AgentConfig`) override them.

        Reads `MEW_GATEWAY`, `MEW_SPACE`, `MEW_PARTICIPANT_ID` and `MEW_TOKEN`, which `mew up` and `mew run` set,
        `OPENAI_API_KEY`, `OPENAI_BASE_URL` and `OPENAI_MODEL`, and `MEW_AGENT_CONFIG` (JSON with any keys). `model` is
        a name, or a `Model` of your own, which leaving the agent closes. `base_url` may name a built-in model, which
        needs no provider. Raises `ConfigError` naming the missing, wrong or unknown setting.
        """
        config, own = _configured(settings, model, os.environ if environ is None else environ)
        return cls.from_config(config, own)

    def on_context_event(self, handler: ContextEventHandler) -> ContextEventHandler:
        """Decorator: call the function with each event of the agent's own context, such as `LevelChanged`.

        A plain `def` function runs in a thread. Each call runs as a separate task, so that a slow handler delays
        nothing. `on(LevelChanged)` receives one class of events instead, in order with all other events.
        """

        async def pass_on(event: ConversationEvent) -> None:
            if isinstance(event, ContextEvent):
                self.start_soon(call_handler, handler, event)

        self.conversation.events.subscribe(pass_on)
        return handler

    async def run(self) -> None:
        """Answer chats until the connection ends for good.

        Raises the error that ended it.
        """
        await self.run_forever()

    def _tools_changed(self) -> None:
        """Choose the offered tools of peers again, and report the omitted ones at once."""
        if self._runtime.was_joined:
            self.tools.specs()


async def run_agent(config: AgentConfig) -> None:
    """Run an agent until it is shut down. Raises a `GatewayError` if the gateway refuses it or it is superseded."""
    await Agent.from_config(config).take_part()


def _configured(
    settings: Mapping[str, Any], model: str | Model | None, environ: Mapping[str, str]
) -> tuple[AgentConfig, Model | None]:
    """Return the configuration of these settings and the environment, and the model if the program provides one."""
    own = None if isinstance(model, str) else model
    settings = {**settings, "model": own.identity.model if own is not None else model}
    refuse_misspelled_variables(environ, settings)
    config, notices = load_agent_config(flags=settings, environ=environ, place_of="Agent({}=...)".format)
    for notice in notices:
        logger.warning("%s", notice)
    if own is None:
        check_model_source(config, where="environment")
    return config, own


def _with_resources(config: AgentConfig, model: Model | None) -> tuple[AgentConfig, AgentResources]:
    """Open the model and the store. Return them with the configuration, which then names a built-in model."""
    resources = open_resources(config, model)
    if model is None and is_builtin(config.base_url):
        config = config.model_copy(update={"model": resources.model.identity.model})
    return config, resources
