"""[pure] What stands between decisions and outlives the process: reminders, and what was decided but not done yet."""

from dataclasses import dataclass

from mew_protocol.context_report import Injection
from pydantic import TypeAdapter

from mew_agent.context.reminders import Reminder


@dataclass(frozen=True, slots=True)
class Standing:
    """Kept with the session.

    `notices` are texts that enter the history before the next generation, `clear` is why the context is cleared before
    it, `injection` what the report says of a prompt or countdown in force. All three are the matter of one `policy`.
    """

    reminders: tuple[Reminder, ...] = ()
    reminders_made: int = 0
    notices: tuple[str, ...] = ()
    clear: str | None = None
    injection: Injection | None = None
    policy: str | None = None


NOTHING = Standing()

_FORM = TypeAdapter(Standing)


def standing_json(standing: Standing) -> str:
    """As JSON text; `standing_from_json` reads it back as it was."""
    return _FORM.dump_json(standing, exclude_defaults=True).decode()


def standing_from_json(text: str) -> Standing:
    """What was kept. Raises pydantic's `ValidationError` for anything else."""
    return _FORM.validate_json(text)
