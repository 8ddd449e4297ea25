"""Which figures on the board are old, and when the gateway asks for newer ones."""

from typing import Any

import pytest
from mew_protocol.payloads.participant import BoardEntry
from mew_spaces.config.loading import SpaceConfig
from mew_spaces.core.connections import OWNER_GRACE
from mew_spaces.core.events import ConnectionId
from mew_spaces.core.status_board import JOIN_GRACE, MAX_AT_ONCE, REQUEST_INTERVAL

from tests.support.space_driver import SpaceDriver

ESTIMATE = {"messages_in_context": 3, "tokens": 704, "max_tokens": 20_000}
REPORT = {"basis": "reported", "level": "healthy", "revision": 1, "measured_at": "2026-01-01T00:00:00Z"}
STATUS = "participant/status"
GRACE, PAUSED = JOIN_GRACE.total_seconds(), REQUEST_INTERVAL.total_seconds()


@pytest.fixture
def driver(config: SpaceConfig) -> SpaceDriver:
    driver = SpaceDriver(config)
    driver.join(1, "ada")
    driver.join(2, "coder")
    return driver


def entry(driver: SpaceDriver, name: str = "coder") -> BoardEntry:
    return next(one for one in driver.space.read_board(now=driver.now).participants if one.id == name)


def requests(driver: SpaceDriver, number: int = 2) -> list[Any]:
    return [one for one in driver.take(number) if one == "participant/request-status"]


def answer(driver: SpaceDriver, **figures: Any) -> None:
    driver.send_envelope(2, "coder", STATUS, {**ESTIMATE, **figures}, to=["system:gateway"])


def chat(driver: SpaceDriver, *to: str) -> None:
    driver.send_envelope(1, "ada", "chat", {"text": "hello"}, **({"to": list(to)} if to else {}))


def test_a_participant_that_joins_without_a_report_is_asked(driver: SpaceDriver) -> None:
    driver.wait(GRACE / 2)
    assert requests(driver) == []
    driver.wait(GRACE / 2)
    assert requests(driver) == ["participant/request-status"]
    answer(driver)
    shown = entry(driver)
    assert shown.status is not None
    assert (shown.status.tokens, shown.outdated) == (704, None)
    driver.wait(1_000)
    assert requests(driver) == []


def test_only_the_asked_participant_gets_the_request(driver: SpaceDriver) -> None:
    driver.wait(GRACE)
    assert requests(driver, 1) == []
    assert not [one for one in driver.history if one.kind == "participant/request-status"]
    request = driver.last(2)
    assert (request.sender, request.to, request.body) == ("system:gateway", ("coder",), {})


@pytest.mark.parametrize("to", [("coder",), ()])
def test_a_figure_is_old_after_a_chat_and_asked_for(driver: SpaceDriver, to: tuple[str, ...]) -> None:
    answer(driver)
    chat(driver, *to)
    assert entry(driver).outdated == "messages_since"
    driver.wait(0)
    assert requests(driver) == ["participant/request-status"]
    answer(driver, tokens=11_500)
    assert entry(driver).outdated is None


def test_the_own_chats_of_a_participant_make_its_figure_old(driver: SpaceDriver) -> None:
    answer(driver)
    driver.send_envelope(2, "coder", "chat", {"text": "done"}, to=["ada"])
    assert entry(driver).outdated == "messages_since"


def test_chats_of_others_leave_a_figure_as_it_is(driver: SpaceDriver) -> None:
    answer(driver)
    chat(driver, "files")
    assert entry(driver).outdated is None


def test_many_chats_cause_one_request_in_a_while(driver: SpaceDriver) -> None:
    answer(driver)
    for _ in range(40):
        chat(driver, "coder")
        driver.wait(PAUSED / 20)
        if requests(driver):
            answer(driver)
    driver.take(2)
    asked = 0
    for _ in range(60):
        chat(driver, "coder")
        driver.wait(PAUSED / 20)
        if requests(driver):
            asked += 1
            answer(driver)
    assert asked == 3


def test_a_participant_that_does_not_answer_is_left_alone(driver: SpaceDriver) -> None:
    asked = 0
    for _ in range(20):
        chat(driver, "coder")
        driver.wait(PAUSED)
        asked += len(requests(driver))
    assert asked == 2


def test_a_participant_without_figures_is_not_asked_again(driver: SpaceDriver) -> None:
    driver.wait(GRACE)
    assert requests(driver)
    driver.send_envelope(2, "coder", STATUS, {"messages_in_context": 0}, to=["system:gateway"])
    for _ in range(5):
        chat(driver, "coder")
        driver.wait(PAUSED)
    assert requests(driver) == []


def test_an_agent_that_reports_by_itself_is_never_asked(driver: SpaceDriver) -> None:
    driver.send_envelope(2, "coder", STATUS, {**ESTIMATE, "context": REPORT})
    for _ in range(5):
        chat(driver, "coder")
        driver.wait(PAUSED)
    assert requests(driver) == []
    assert entry(driver).outdated is None


@pytest.mark.parametrize(
    ("kind", "payload"), [("reasoning/start", {"input": "hello"}), ("chat/acknowledge", {"status": "processing"})]
)
def test_participants_without_a_program_are_asked_once_they_work(
    driver: SpaceDriver, kind: str, payload: dict[str, Any]
) -> None:
    driver.wait(GRACE)
    chat(driver, "ada")
    driver.wait(PAUSED)
    assert requests(driver, 1) == []
    driver.send_envelope(1, "ada", "chat/acknowledge", {"status": "received"})
    driver.wait(0)
    assert requests(driver, 1) == []
    driver.send_envelope(1, "ada", kind, payload)
    driver.wait(0)
    assert requests(driver, 1) == ["participant/request-status"]


def test_tools_without_chats_are_not_asked(driver: SpaceDriver) -> None:
    driver.join(3, "files")
    driver.wait(GRACE)
    assert requests(driver, 3) == []


@pytest.mark.parametrize("context", [None, REPORT])
def test_a_figure_from_before_the_last_join_is_old(driver: SpaceDriver, context: dict[str, Any] | None) -> None:
    more = {} if context is None else {"context": {**context, "compact_at_tokens": 18_000}}
    driver.send_envelope(2, "coder", STATUS, {**ESTIMATE, **more})
    driver.wait(60)
    driver.send_envelope(2, "coder", STATUS, {**ESTIMATE, "tokens": 11_500, **more})
    driver.wait(1)
    assert entry(driver).seconds_to_compaction is not None
    driver.leave(2, "coder")
    driver.join(3, "coder")
    shown = entry(driver)
    assert (shown.outdated, shown.seconds_to_compaction) == ("before_join", None)
    driver.join(4, "files")
    assert [one.get("outdated") for one in driver.last(4).body["board"]] == ["before_join"]
    driver.wait(GRACE)
    assert requests(driver, 3) == ["participant/request-status"]
    driver.send_envelope(3, "coder", STATUS, {**ESTIMATE, "tokens": 11_600, **more}, to=["system:gateway"])
    driver.wait(1)
    shown = entry(driver)
    assert (shown.outdated, shown.seconds_to_compaction) == (None, None), "no growth across the join"


def test_a_join_alone_says_nothing_of_an_unknown_size(driver: SpaceDriver) -> None:
    unknown = {"messages_in_context": 0, "context": {**REPORT, "basis": "unknown", "reason": "no_call_yet"}}
    driver.send_envelope(2, "coder", STATUS, unknown)
    driver.leave(2, "coder")
    driver.join(3, "coder")
    assert entry(driver).outdated is None


def test_the_age_of_a_figure_is_that_of_its_measurement(driver: SpaceDriver) -> None:
    driver.send_envelope(2, "coder", STATUS, {**ESTIMATE, "context": REPORT})
    first = entry(driver).figure_at
    driver.wait(60)
    driver.send_envelope(2, "coder", STATUS, {**ESTIMATE, "status": "paused", "context": REPORT})
    assert entry(driver).figure_at == first
    driver.send_envelope(2, "coder", STATUS, {**ESTIMATE, "tokens": 800, "context": REPORT})
    assert entry(driver).figure_at != first


def test_many_that_join_at_once_are_asked_a_few_at_a_time(driver: SpaceDriver) -> None:
    board, names = driver.space.board, [f"agent-{number}" for number in range(3 * MAX_AT_ONCE)]
    for name in names:
        board.joined(name, now=driver.now, is_asked=True)
    due = driver.now + JOIN_GRACE
    asked = [board.requests.take_due(lambda _: True, now=due) for _ in range(4)]
    assert [len(one) for one in asked[:3]] == [MAX_AT_ONCE] * 3
    assert sorted(name for one in asked for name in one if name in names) == sorted(names)


def test_a_participant_is_not_asked_after_leaving(driver: SpaceDriver) -> None:
    driver.leave(2, "coder")
    driver.wait(OWNER_GRACE.total_seconds())
    assert not driver.space.connections.waits_for_time
    assert ConnectionId(2) not in driver.admitted


@pytest.mark.parametrize(("tokens", "asked"), [(704, 1), (None, 0)])
def test_a_person_without_a_figure_is_not_asked_for_it_after_a_restart(
    driver: SpaceDriver, config: SpaceConfig, tokens: int | None, asked: int
) -> None:
    driver.send_envelope(1, "ada", STATUS, {**ESTIMATE, "tokens": tokens})
    restarted = SpaceDriver(config, driver.stored)
    for again in (driver, restarted):
        again.leave(1, "ada")
        again.join(1, "ada")
        again.take(1)
        again.wait(GRACE)
        assert len(requests(again, 1)) == asked
