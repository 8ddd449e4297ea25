"""A flood of lines is bounded; what was left out is counted."""

import logging

import pytest
from mew_listener.log_budget import LINES_PER_WINDOW, MAX_LINE_CHARS, UNBOUNDED, LogBudget, bounded_logs
from mew_spaces.gateway import service
from mew_spaces.log import sqlite
from mew_spaces.parts.jetstream import nats_link


def record(template: str, *about: object, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("mew_spaces", level, "", 0, template, about, None)


def test_lines_of_one_kind_are_bounded_in_each_window() -> None:
    now = [0.0]
    budget = LogBudget(lines=3, seconds=60, clock=lambda: now[0])
    assert [budget.filter(record("%s is bad", number)) for number in range(10)] == [True] * 3 + [False] * 7
    assert budget.filter(record("another kind"))
    now[0] = 60.0
    after = record("%s is bad", 11)
    assert budget.filter(after)
    assert after.getMessage() == "11 is bad (7 more like this were left out)"
    assert [budget.filter(record("%s is bad", number)) for number in range(4)] == [True, True, False, False]


def test_a_repeated_line_is_logged_once() -> None:
    budget = LogBudget(lines=3)
    assert [budget.filter(record("the same")) for _ in range(5)] == [True] + [False] * 4


def test_information_may_repeat_itself() -> None:
    budget = LogBudget(lines=1)
    assert [budget.filter(record("it is ready", level=logging.INFO)) for _ in range(6)] == [True] * 4 + [False] * 2


def test_all_kinds_together_are_bounded() -> None:
    now = [0.0]
    budget = LogBudget(all_lines=5, clock=lambda: now[0])
    assert sum(budget.filter(record(f"kind {number}")) for number in range(50)) == 5
    now[0] = 60.0
    after = record("kind 50")
    assert budget.filter(after)
    assert after.getMessage() == "kind 50 (45 lines of other kinds were left out)"


def test_a_long_line_is_cut() -> None:
    long = record("invalid line: %s", "x" * 30_000)
    assert LogBudget().filter(long)
    assert long.getMessage().endswith("x... (30,014 characters)")
    assert len(long.getMessage()) < 2 * MAX_LINE_CHARS


def test_two_budgets_count_a_line_once() -> None:
    first, second = LogBudget(lines=1), LogBudget(lines=1)
    now = record("%s failed", 1)
    assert all(one.filter(now) for one in (first, second, second))


def test_lines_of_a_users_program_always_pass() -> None:
    budget = LogBudget(lines=1)
    of_program = record("%s: %s", "agent", "x")
    vars(of_program).update(UNBOUNDED)
    assert all(budget.filter(of_program) for _ in range(5))


def test_less_severe_lines_are_not_counted() -> None:
    budget = LogBudget(least_level=logging.WARNING, lines=1)
    assert all(budget.filter(record("granted", level=logging.INFO)) for _ in range(5))


@pytest.mark.parametrize("log", [service.log, sqlite.log, nats_link.log])
def test_lines_of_every_package_of_the_gateway_are_bounded(
    log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    with bounded_logs("mew_spaces"):
        for number in range(LINES_PER_WINDOW + 5):
            log.warning("%d failed", number)
    assert len(caplog.records) == LINES_PER_WINDOW
