"""[pure] State that survives a restart besides the history: accounts, reminders and planned policy actions."""

from dataclasses import dataclass

from mew_protocol.context_report import Injection, LastCompaction, LastReported
from pydantic import BaseModel, ConfigDict, TypeAdapter

from mew_agent.context.policy import PolicyState
from mew_agent.context.reminders import Reminder


class PromptAnchor(BaseModel):
    """A reported prompt minus later cuts, from which a restarted process projects.

    It contains the items up to `last_seq`. The counts are the features of prefix and pins (see `projection`). `model`
    is the configured model; for another model the figure means nothing.
    """

    model_config = ConfigDict(frozen=True)

    prompt_tokens: int
    last_seq: int
    prefix_counts: tuple[int, ...]
    pins_counts: tuple[int, ...]
    model: str


class SavedContext(BaseModel):
    """The accounts of a context. Counts are in tokens."""

    model_config = ConfigDict(frozen=True)

    last_reported: LastReported | None = None
    measured_revision: int = 0
    measured_seq: int = -1
    measured_reply_seq: int | None = None
    compactions: int = 0
    last_compaction: LastCompaction | None = None
    policy_state: PolicyState = PolicyState()
    served_model: str | None = None
    calibrations: dict[str, tuple[float, ...]] = {}
    spent_tokens: int = 0
    anchor: PromptAnchor | None = None


@dataclass(frozen=True, slots=True)
class PersistedState:
    """Reminders, and policy actions that were decided but not performed yet.

    `pending_prompts` are texts that enter the history before the next generation. `planned_clear` is the reason for
    clearing the context before it. `injection` is the prompt or countdown now in force, as the report shows it. All
    three belong to the policy named `policy`.
    """

    reminders: tuple[Reminder, ...] = ()
    reminders_made: int = 0
    pending_prompts: tuple[str, ...] = ()
    planned_clear: str | None = None
    injection: Injection | None = None
    policy: str | None = None


NOTHING = PersistedState()

_JSON = TypeAdapter(PersistedState)


def persisted_state_json(state: PersistedState) -> str:
    """Encode as JSON; `persisted_state_from_json` decodes it."""
    return _JSON.dump_json(state, exclude_defaults=True).decode()


def persisted_state_from_json(text: str) -> PersistedState:
    """Decode from JSON. Raises pydantic's `ValidationError` if the text is invalid."""
    return _JSON.validate_json(text)
