"""Everything a configuration says about a conversation, in one value."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mew_agent.model.interface import Model, ToolSpec
from mew_agent.tokens.sizes import no_counter
from mew_agent.tokens.tokenizers import TextCounter
from mew_agent.tools.bounds import ResultBound

CALL_BOUND_SECONDS = 30.0  # how long a control waits for the running model call before it interrupts the call


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationOptions:
    """Options of one conversation."""

    system_prompt: str
    tools: Callable[[], tuple[ToolSpec, ...]] = tuple  # to offer with the next request
    keep_newest_items: int | None = None  # bounds the history before each turn
    call_bound_seconds: float = CALL_BOUND_SECONDS
    summariser: Model | None = None  # writes the summaries; None: the model itself
    result_bound: ResultBound = field(default_factory=ResultBound)
    load_counter: Callable[[], TextCounter | None] = no_counter  # loads the model's tokenizer, if any, in a thread
    windows: Mapping[str, int] = field(default_factory=dict)  # in tokens, of models that may answer instead
