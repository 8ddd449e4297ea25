"""What survives a restart is read back as it was written, also by a version that knew less."""

from mew_agent.context.outcomes import SavedContext
from mew_agent.context.policy import PolicyState
from protocol.context_report import LastReported


def test_saved_accounts_are_read_back() -> None:
    saved = SavedContext(
        last_reported=LastReported(tokens=190_000, measured_at="t", call_id="c"),
        policy_state=PolicyState(prompting="critical", remaining=2, generation="c"),
        calibrations={"model": (1.5, 2.0)},
    )
    assert SavedContext.model_validate_json(saved.model_dump_json()) == saved
    assert SavedContext.model_validate({}) == SavedContext()
