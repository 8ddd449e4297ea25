"""State that survives a restart is decoded as it was encoded."""

import pytest
from mew_protocol.context_report import Injection, LastReported
from pydantic import ValidationError

from mew_agent.context.cuts import CutOutcome
from mew_agent.context.persisted_state import PersistedState, PromptAnchor, SavedContext
from mew_agent.context.policy import PolicyState
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


@pytest.mark.parametrize("state", [PersistedState(), FULL])
def test_the_state_is_read_back(state: PersistedState) -> None:
    assert PersistedState.model_validate_json(state.model_dump_json(exclude_defaults=True)) == state


def test_another_type_is_refused() -> None:
    with pytest.raises(ValidationError):
        PersistedState.model_validate_json('{"pending_prompts": 3}')


def test_saved_accounts_are_read_back() -> None:
    saved = SavedContext(
        last_reported=LastReported(tokens=190_000, measured_at="t", call_id="c"),
        policy_state=PolicyState(prompting="critical", remaining=2, generation="c"),
        calibrations={"model": (1.5, 2.0)},
        anchor=PromptAnchor(prompt_tokens=900, last_seq=7, prefix_counts=(1, 2), pins_counts=(), model="model"),
    )
    assert SavedContext.model_validate_json(saved.model_dump_json()) == saved
    assert SavedContext.model_validate({}) == SavedContext()


def test_a_whole_compaction_is_reported_with_all_its_figures() -> None:
    outcome = CutOutcome("threshold", 900, 400, 500, 560, 60, 8, "projected")
    last = outcome.as_last_compaction("t").model_dump()
    assert last.pop("at") == "t"
    assert last == {field: getattr(outcome, field) for field in CutOutcome.__dataclass_fields__}
