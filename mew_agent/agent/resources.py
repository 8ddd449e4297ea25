"""What an agent opens from its configuration: its model, the model that summarises, and the store of its session.

Owns which model and store a configuration means, and that they are closed together. Does not know any space.
"""

from dataclasses import dataclass

import anyio

from mew_agent.config.agent_config import AgentConfig, chosen_policy
from mew_agent.config.policy_choice import server_refusal
from mew_agent.context.sqlite_store import MemoryStore, SqliteStore
from mew_agent.context.store import Store, StoreLimits
from mew_agent.errors import ConfigError, MewAgentError
from mew_agent.model.builtin import builtin_model
from mew_agent.model.interface import Model

CLOSE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class AgentResources:
    """What one agent opened. `summariser` None: the model itself writes summaries."""

    model: Model
    store: Store
    summariser: Model | None = None

    async def aclose(self) -> None:
        """Close them, even in a cancelled task."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_SECONDS):
            await self.model.aclose()
            if self.summariser is not None:
                await self.summariser.aclose()
            await self.store.aclose()


def store_limits(config: AgentConfig) -> StoreLimits:
    """Return what a session may keep of what has left the context."""
    return StoreLimits(config.store_max_days, config.store_max_megabytes * 1024 * 1024, config.store_max_compactions)


def open_resources(config: AgentConfig, model: Model | None = None) -> AgentResources:
    """Open what a configuration names; `model` replaces its model.

    A name as `base_url`, such as `rehearsal`, is a model in this process.
    """
    key = config.api_key.get_secret_value() if config.api_key else None
    limits = store_limits(config)
    store: Store = SqliteStore(config.store, limits) if config.store else MemoryStore(limits)
    summariser: Model | None = None
    if (named := config.summariser_model()) is not None:
        own_key = named.api_key.get_secret_value() if named.api_key else key
        summariser = _model(named.model, named.base_url or config.base_url, own_key, config.context_token_limit)
    model = model or _model(config.model, config.base_url, key, config.context_token_limit)
    return AgentResources(model, store, summariser)


async def check_provider(config: AgentConfig, model: Model) -> None:
    """Raise `ConfigError` if the policy is for another provider than the one that serves the model."""
    policy = chosen_policy(config).policy
    if policy.scope is None or config.policy_scope == "any" or config.provider is not None:
        return
    try:
        window = await model.discover_window()
    except MewAgentError:
        window = None
    refusal = server_refusal(policy, model.identity.endpoint or "this server", window)
    if refusal is not None:
        raise ConfigError("policy", refusal, f"`provider: {policy.scope}` if the server cannot be asked")


def _model(name: str, base_url: str | None, key: str | None, window_tokens: int | None) -> Model:
    builtin = builtin_model(base_url)
    if builtin is not None:
        return builtin.open(name, window_tokens)
    from mew_agent.model.openai_client import OpenAIModel

    return OpenAIModel(name, base_url, key)
