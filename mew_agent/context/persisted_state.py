"""[pure] State that survives a restart besides history and accounts: reminders and planned policy actions."""

from dataclasses import dataclass

from mew_protocol.context_report import Injection
from pydantic import TypeAdapter

from mew_agent.context.reminders import Reminder


@dataclass(frozen=True, slots=True)
class PersistedState:
    """Stored with the session.

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

_FORM = TypeAdapter(PersistedState)


def persisted_state_json(state: PersistedState) -> str:
    """Encode as JSON; `persisted_state_from_json` decodes it."""
    return _FORM.dump_json(state, exclude_defaults=True).decode()


def persisted_state_from_json(text: str) -> PersistedState:
    """Decode from JSON. Raises pydantic's `ValidationError` if the text is invalid."""
    return _FORM.validate_json(text)
