"""The trend of the measured size."""

from mew_agent.context.measurement import TREND_TURNS, Trend


def test_the_trend_is_none_until_two_calls_are_known() -> None:
    trend = Trend()
    trend.add(100, turn=1)
    assert trend.tokens_per_turn is None
    trend.add(160, turn=2)
    assert trend.tokens_per_turn == 60


def test_calls_of_one_turn_count_together() -> None:
    trend = Trend()
    for total, turn in ((100, 1), (150, 2), (180, 2), (200, 2), (300, 3)):
        trend.add(total, turn=turn)
    assert trend.tokens_per_turn == (100 + 100) / 2


def test_a_compaction_does_not_count_as_growth() -> None:
    trend = Trend()
    trend.add(100, turn=1)
    trend.add(200, turn=2)
    trend.interrupt()
    trend.add(50, turn=3)
    trend.add(170, turn=4)
    assert trend.tokens_per_turn == (100 + 120) / 2


def test_only_recent_turns_count() -> None:
    trend = Trend()
    trend.add(0, turn=0)
    for turn in range(1, TREND_TURNS + 1):
        trend.add(turn * 1000, turn=turn)
    for turn in range(TREND_TURNS + 1, 2 * TREND_TURNS + 1):
        trend.add(TREND_TURNS * 1000 + (turn - TREND_TURNS) * 10, turn=turn)
    assert trend.tokens_per_turn == 10


def test_a_new_conversation_has_no_trend() -> None:
    trend = Trend()
    trend.add(100, turn=1)
    trend.add(200, turn=2)
    trend.reset()
    trend.add(300, turn=3)
    assert trend.tokens_per_turn is None
