"""What outlives the process is read back as it was written."""

import pytest
from mew_protocol.context_report import Injection
from pydantic import ValidationError

from mew_agent.context.persisted_state import NOTHING, PersistedState, persisted_state_from_json, persisted_state_json
from mew_agent.context.reminders import ContinuationPackage, Reminder

FULL = PersistedState(
    reminders=(
        Reminder("r1", "The pier.", "t", package=ContinuationPackage("context_health", "critical")),
        Reminder("r2", "", "t", owner="context_health"),
    ),
    reminders_made=4,
    pending_prompts=("a prompt",),
    planned_clear="countdown at critical ended",
    injection=Injection(kind="countdown", remaining=3, text="three"),
)


@pytest.mark.parametrize("standing", [NOTHING, FULL])
def test_it_is_read_back(standing: PersistedState) -> None:
    assert persisted_state_from_json(persisted_state_json(standing)) == standing


def test_nothing_is_kept_as_nothing() -> None:
    assert persisted_state_json(NOTHING) == "{}"


def test_anything_else_is_refused() -> None:
    with pytest.raises(ValidationError):
        persisted_state_from_json('{"pending_prompts": 3}')
