"""What survives a restart: reports, calibrations and decisions, but not the present size."""

from mew_agent.context.history import Summary
from mew_agent.context.policy import AnnounceAction
from tests.support.accounted import SYSTEM, Agent, breakdown_sum, restarted, used


def test_a_restarted_process_knows_only_last_reported() -> None:
    agent = Agent()
    agent.turn(1_000)
    agent.receive()
    again = restarted(agent)
    assert again.shown() == (None, "unknown", "restarted", 3)
    report = again.report()
    assert report.last_reported is not None
    assert (report.last_reported.tokens, report.measured_at, report.call_id) == (
        1_000,
        "2026-01-01T00:00:01Z",
        "call-1",
    )
    assert report.stale_messages == 1
    again.call(used(1_100))
    assert again.shown() == (1_100, "reported", None, 4)
    assert breakdown_sum(again.report()) == 1_100


def test_a_restart_projects_the_next_prompt_from_the_last_report() -> None:
    agent = Agent()
    for total in (900, 1_500, 2_200):
        agent.turn(total)
    agent.forget(0, 1)
    agent.receive()
    predicted = agent.tracker.ledger.next_prompt_tokens
    again = restarted(restarted(agent))
    assert again.tracker.ledger.next_prompt_tokens == predicted
    again.tracker.describe_prefix(SYSTEM, "")
    assert (again.tracker.ledger.next_prompt_tokens, again.tracker.ledger.next_prompt_basis) == (predicted, "projected")
    again.tracker.describe_prefix(SYSTEM, "more tools " * 60)
    assert again.tracker.ledger.next_prompt_tokens > predicted + 60
    again.tracker.describe_prefix("", "")
    assert again.tracker.ledger.next_prompt_tokens < predicted - 100
    assert {again.tracker.ledger.price(item.seq, item.seq).basis for item in again.history.items} == {"projected"}
    again.call(used(predicted + 30, 20))
    assert again.report().drift_tokens == -10


def test_a_restarted_tracker_ignores_another_models_report() -> None:
    agent = Agent()
    agent.turn(50_000)
    saved = agent.tracker.saved()
    assert saved.anchor is not None
    again = Agent(history=agent.history)
    other = saved.anchor.model_copy(update={"model": "other"})
    again.tracker.restored(saved.model_copy(update={"anchor": other}), {})
    assert again.report().next_prompt_basis == "heuristic"
    assert again.tracker.ledger.next_prompt_tokens < 1_000


def test_a_restart_with_a_history_but_no_report_is_restarted() -> None:
    agent = Agent()
    agent.ask()
    agent.call(None)
    assert restarted(agent).shown() == (None, "unknown", "restarted", 2)
    assert restarted(Agent()).shown() == (None, "unknown", "no_call_yet", 0)


def test_the_policy_remembers_across_a_restart_that_it_has_warned() -> None:
    agent = Agent(1_000)
    agent.turn(950)
    assert AnnounceAction("near_limit") in agent.tracker.decide("after_call", 10.0).actions
    again = restarted(agent)
    assert not again.tracker.policy_state.armed
    again.turn(960)
    assert AnnounceAction("near_limit") not in again.tracker.decide("after_call", 1_000.0).actions


def test_a_stall_survives_a_restart_until_a_low_call() -> None:
    agent = Agent(1_000)
    agent.turn(950)
    for _ in range(2):
        agent.tracker.compaction_ended(progressed=False, at_seconds=1.0)
    again = restarted(agent)
    assert again.tracker.is_stalled
    again.tracker.decide("after_call", 2.0)  # as when the server's window is found
    assert again.tracker.is_stalled
    again.turn(100)
    again.tracker.decide("after_call", 3.0)
    assert not again.tracker.is_stalled


def test_calibrations_survive_two_restarts_without_a_call() -> None:
    agent = Agent()
    agent.turn(1_000)
    learnt = agent.tracker.ledger.calibration
    again = restarted(restarted(agent))
    assert again.tracker.ledger.calibration == learnt
    assert again.tracker.saved().served_model == "gpt"


def test_compactions_and_the_last_one_survive_a_restart() -> None:
    agent = Agent()
    for total in (1_000, 1_400):
        agent.turn(total)
    outcome = agent.summarise(0, 1, Summary("One.", known_tokens=4))
    agent.tracker.compacted(outcome, at="t", at_seconds=1.0, progressed=True)
    again = restarted(agent)
    assert again.report().compactions == 1
    assert again.report().last_compaction == agent.report().last_compaction
    assert again.tracker.ledger.preamble.summary_tokens > 0
