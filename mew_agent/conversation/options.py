"""Everything a configuration says about a conversation, in one value."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mew_agent.model.interface import Model, ToolSpec
from mew_agent.tokens.sizes import no_counter
from mew_agent.tokens.tokenizers import TextCounter
from mew_agent.tools.bounds import ResultBound

CALL_BOUND_SECONDS = 30.0
"""How long a control waits for the running model call before it interrupts the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationOptions:
    """Options of one conversation.

    `tools` returns the tools to offer with the next request. `keep_newest_items` bounds the history before each turn,
    in items; None does not. `summariser` writes the summaries; None: the model itself. `load_counter` returns the
    model's tokenizer, if there is one; it runs once, in a thread. `windows` holds the context windows, in tokens by
    name, of models that may answer in place of the requested one.
    """

    system_prompt: str
    tools: Callable[[], tuple[ToolSpec, ...]] = tuple
    keep_newest_items: int | None = None
    call_bound_seconds: float = CALL_BOUND_SECONDS
    summariser: Model | None = None
    result_bound: ResultBound = field(default_factory=ResultBound)
    load_counter: Callable[[], TextCounter | None] = no_counter
    windows: Mapping[str, int] = field(default_factory=dict)
