"""The trend of the measured size."""

from mew_agent.context.measurement import FEWEST_TASKS, TASKS, TREND_TURNS, Measurement, TurnGrowth
from mew_agent.context.persisted_state import SavedContext


def test_the_trend_is_none_until_two_calls_are_known() -> None:
    trend = TurnGrowth()
    trend.add(100, turn=1)
    assert trend.tokens_per_turn is None
    trend.add(160, turn=2)
    assert trend.tokens_per_turn == 60


def test_calls_of_one_turn_count_together() -> None:
    trend = TurnGrowth()
    for total, turn in ((100, 1), (150, 2), (180, 2), (200, 2), (300, 3)):
        trend.add(total, turn=turn)
    assert trend.tokens_per_turn == (100 + 100) / 2


def test_a_compaction_does_not_count_as_growth() -> None:
    trend = TurnGrowth()
    trend.add(100, turn=1)
    trend.add(200, turn=2)
    trend.interrupt()
    trend.add(50, turn=3)
    trend.add(170, turn=4)
    assert trend.tokens_per_turn == (100 + 120) / 2


def test_only_recent_turns_count() -> None:
    trend = TurnGrowth()
    trend.add(0, turn=0)
    for turn in range(1, TREND_TURNS + 1):
        trend.add(turn * 1000, turn=turn)
    for turn in range(TREND_TURNS + 1, 2 * TREND_TURNS + 1):
        trend.add(TREND_TURNS * 1000 + (turn - TREND_TURNS) * 10, turn=turn)
    assert trend.tokens_per_turn == 10


def test_a_new_conversation_has_no_trend() -> None:
    trend = TurnGrowth()
    trend.add(100, turn=1)
    trend.add(200, turn=2)
    trend.reset()
    trend.add(300, turn=3)
    assert trend.tokens_per_turn is None
    trend.add(310, turn=4)
    assert trend.tokens_per_turn == 10


def test_a_usual_task_is_as_large_as_most_recent_ones() -> None:
    trend, total = TurnGrowth(), 0
    trend.add(total, turn=0)
    for turn, grown in enumerate((9, 10, 30, 20), start=1):
        total += grown
        trend.add(total, turn=turn)
    assert (len((9, 10, 30, 20)), trend.usual_task_tokens) == (FEWEST_TASKS - 1, None)
    for turn in range(5, 5 + TASKS):
        total += 500 if turn in (7, 11) else 40
        trend.add(total, turn=turn)
        assert trend.usual_task_tokens == (500 if turn >= 7 else 40)
    trend.add(total + 40, turn=99)
    trend.add(total + 80, turn=100)
    trend.add(total + 120, turn=101)
    assert trend.usual_task_tokens == 40, "one of 20 is not usual"


def test_the_size_of_a_usual_task_survives_a_restart() -> None:
    measurement = Measurement()
    measurement.restore(SavedContext(growth=(10, 30, 20, 20, 20)))
    assert (measurement.trend.usual_task_tokens, measurement.trend.tokens_per_turn) == (30, None)
