"""What survives a restart is read back as it was written, also by a version that knew less."""

from mew_protocol.context_report import LastReported

from mew_agent.context.outcomes import Anchor, CutOutcome, SavedContext
from mew_agent.context.policy import PolicyState


def test_saved_accounts_are_read_back() -> None:
    saved = SavedContext(
        last_reported=LastReported(tokens=190_000, measured_at="t", call_id="c"),
        policy_state=PolicyState(prompting="critical", remaining=2, generation="c"),
        calibrations={"model": (1.5, 2.0)},
        anchor=Anchor(prompt_tokens=900, last_seq=7, prefix_counts=(1, 2), pins_counts=(), model="model"),
    )
    assert SavedContext.model_validate_json(saved.model_dump_json()) == saved
    assert SavedContext.model_validate({}) == SavedContext()


def test_a_whole_compaction_is_reported_with_all_its_figures() -> None:
    outcome = CutOutcome("threshold", 900, 400, 500, 560, 60, 8, "projected")
    last = outcome.as_last_compaction("t").model_dump()
    assert last.pop("at") == "t"
    assert last == {field: getattr(outcome, field) for field in CutOutcome.__dataclass_fields__}
