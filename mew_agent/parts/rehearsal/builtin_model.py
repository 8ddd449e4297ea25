"""`base_url: rehearsal`: the rehearsal model without a URL."""

from mew_agent.model.builtin import BuiltinModel
from mew_agent.model.interface import Model


class RehearsalModel(BuiltinModel):
    """Canned replies, for trying things out without a provider."""

    notice = "its agents use the rehearsal model: canned replies, no real model"

    def serves(self, model: str, where: str) -> str:
        """Return its name: one server serves all agents."""
        return "rehearsal"

    def described(self, serves: str) -> str:
        """Return its name in an error."""
        return "a rehearsal model"

    def name_of(self, serves: str) -> str:
        """Return the model's name, whatever the agent calls it."""
        return serves

    def open(self, model: str, window_tokens: int | None) -> Model:
        """Return the model inside this process."""
        from mew_agent.parts.rehearsal.service import EmbeddedRehearsal  # needs a web server

        return EmbeddedRehearsal(window_tokens)


REHEARSAL = RehearsalModel()
