"""[pure] The size of the next request: projected by the ledger, or counted by the model's server.

Owns how long a server's count is valid, and when counting is worth a request. Does not call the server.
"""

from dataclasses import dataclass

from mew_protocol.context_report import NextPromptBasis

from mew_agent.context.facts import Described
from mew_agent.context.history import History, pinned_text
from mew_agent.context.ledger import Ledger
from mew_agent.context.policy import output_reserve_tokens
from mew_agent.context.preamble import FixedTexts
from mew_agent.tokens.projection import features

CLOSE_CALL_PART = 20  # a projection within 1/20 of the window from where it decides is a close call


@dataclass
class NextPrompt:
    """The next request of one conversation."""

    history: History
    ledger: Ledger
    _prefix: object = None
    _server_count: tuple[int, object] | None = None

    def describe_prefix(self, system_prompt: str, tools_text: str) -> None:
        """Set the texts sent before the items. Call it before each request; unchanged texts cost nothing."""
        prefix = (system_prompt, tools_text, tuple(self.history.pins))
        if prefix != self._prefix:
            self._prefix = prefix
            pins = features(pinned_text(self.history.pins))
            self.ledger.apply(Described(FixedTexts(features(system_prompt) + features(tools_text), pins)))

    @property
    def prefix_tokens(self) -> int:
        """Projected size of the system prompt and tools of the next request."""
        return self.ledger.parts.prefix + self.ledger.prefix_growth_tokens

    def forget_prefix(self) -> None:
        """Weigh the prefix again when it is described next."""
        self._prefix = None

    def set_server_count(self, tokens: int) -> None:
        """Set the server's count of the next request. It is valid until the request changes."""
        self._server_count = (tokens, self.key)

    @property
    def tokens(self) -> int:
        """Size of the next request if nothing else is added."""
        counted = self._current_count()
        return self.ledger.next_prompt_tokens if counted is None else counted

    @property
    def basis(self) -> NextPromptBasis:
        """How `tokens` is known."""
        return self.ledger.next_prompt_basis if self._current_count() is None else "server_counted"

    def is_close_call(self, limit_tokens: int) -> bool:
        """Return whether the error of the projection could change a decision, so that counting is worth a request."""
        projected = self.ledger.next_prompt_tokens
        if self.ledger.prompt_tokens is None:
            return projected * 2 >= limit_tokens
        return abs(projected + output_reserve_tokens(limit_tokens) - limit_tokens) * CLOSE_CALL_PART <= limit_tokens

    @property
    def key(self) -> object:
        """Identity of the next request. A count of a request is valid while it stays the same."""
        return (self.history.revision, self.history.last_seq, self._prefix)

    def _current_count(self) -> int | None:
        if self._server_count is None or self._server_count[1] != self.key:
            return None
        return self._server_count[0]
