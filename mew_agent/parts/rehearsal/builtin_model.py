"""`base_url: rehearsal`: the rehearsal model without a URL."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mew_agent.extras import require_extra
from mew_agent.model.builtin import BuiltinModel, ServeOptions, ServerAddress
from mew_agent.model.interface import Model


class RehearsalModel(BuiltinModel):
    """Canned replies for trials without a provider."""

    notice = "its agents use the rehearsal model: canned replies, no real model"

    def serves(self, model: str, where: str) -> str:
        """Return its name: one server serves all agents."""
        return "rehearsal"

    def described(self, serves: str) -> str:
        """Return its name in an error."""
        return "a rehearsal model"

    def name_of(self, serves: str) -> str:
        """Return the model's fixed name."""
        return serves

    def open(self, model: str, window_tokens: int | None) -> Model:
        """Return the model inside this process. Raises `MissingExtra` without the extra `space`."""
        require_extra("space", "the rehearsal model")
        from mew_agent.parts.rehearsal.model_service import EmbeddedRehearsal  # imports a web server

        return EmbeddedRehearsal(window_tokens)

    @asynccontextmanager
    async def serve(self, options: ServeOptions) -> AsyncIterator[ServerAddress]:
        """Serve the model."""
        from mew_agent.parts.rehearsal import RehearsalOptions, serve_rehearsal  # imports a web server

        name, window = options.name or options.serves, options.window_tokens
        own = RehearsalOptions(model=name, window_tokens=window, reply_tokens=options.reply_tokens or 120)
        async with serve_rehearsal(own, host=options.host, port=options.port, allowed=options.allowed) as server:
            what = f"rehearsal model '{name}' (canned replies, no real model; window {window:,} tokens)"
            yield ServerAddress(what, name, server.base_url)


REHEARSAL = RehearsalModel()
