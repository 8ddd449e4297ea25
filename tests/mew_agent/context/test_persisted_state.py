"""What outlives the process is read back as it was written."""

import pytest
from mew_protocol.context_report import Injection
from pydantic import ValidationError

from mew_agent.context.persisted_state import NOTHING, Standing, standing_from_json, standing_json
from mew_agent.context.reminders import Package, Reminder

FULL = Standing(
    reminders=(
        Reminder("r1", "The pier.", "t", package=Package("context_health", "critical")),
        Reminder("r2", "", "t", owner="context_health"),
    ),
    reminders_made=4,
    notices=("a prompt",),
    clear="countdown at critical ended",
    injection=Injection(kind="countdown", remaining=3, text="three"),
)


@pytest.mark.parametrize("standing", [NOTHING, FULL])
def test_it_is_read_back(standing: Standing) -> None:
    assert standing_from_json(standing_json(standing)) == standing


def test_nothing_is_kept_as_nothing() -> None:
    assert standing_json(NOTHING) == "{}"


def test_anything_else_is_refused() -> None:
    with pytest.raises(ValidationError):
        standing_from_json('{"notices": 3}')
