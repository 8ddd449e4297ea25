"""A test that fails once and passes alone fails the run, unless it is listed with a date and a reason."""

import pytest

from tests.races import KNOWN, MOST_FAILED, Verdict, judge, read_known

RACY, BROKEN = "tests/test_a.py::test_racy[a b]", "tests/test_a.py::test_broken"


def test_an_unlisted_race_fails_the_run() -> None:
    verdict = judge([RACY], {}, lambda _: True)
    assert verdict == Verdict(races=(RACY,))
    assert not verdict.passes


def test_a_listed_race_passes_and_a_broken_test_never_does() -> None:
    known = read_known(f"# comment\n\n{RACY} 2026-11-24 waits for a slow disk\n{BROKEN} 2026-11-24 unlucky\n")
    assert judge([RACY], known, lambda _: True) == Verdict(known=(RACY,))
    assert judge([RACY], known, lambda _: True).passes
    assert judge([RACY, BROKEN], known, lambda test: test == RACY) == Verdict(broken=(BROKEN,), known=(RACY,))


def test_many_failures_are_not_run_again() -> None:
    failed = [f"{RACY}{number}" for number in range(MOST_FAILED + 1)]
    assert judge(failed, {}, lambda _: pytest.fail("ran again")).broken == tuple(failed)


@pytest.mark.parametrize("line", [RACY, f"{RACY} 2026-11-24", f"{RACY} soon because", "nothing 2026-11-24 because"])
def test_a_line_without_date_or_reason_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="expected TEST YYYY-MM-DD REASON"):
        read_known(line)


def test_the_list_of_this_project_can_be_read() -> None:
    read_known(KNOWN.read_text(encoding="utf-8"))
