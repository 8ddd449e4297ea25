"""The wall clock of a space is set while pauses and absences run."""

from datetime import UTC, datetime, timedelta

import pytest
from mew_protocol.ids import ParticipantId
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.clock import WallClock

from tests.support.space_driver import SpaceDriver

SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}]}
  coder: {command: mew, capabilities: [{kind: chat}]}
"""


@pytest.mark.parametrize("jump_seconds", [-86_400, -30, 30, 86_400])
def test_setting_the_clock_neither_ends_nor_prolongs_a_pause(jump_seconds: int) -> None:
    driver, elapsed, offset = SpaceDriver(parse_space(SPACE)), [0.0], [0.0]
    start = driver.now

    def shift(by: timedelta) -> None:
        driver.perform(driver.space.connections.shift_deadlines(by))

    clock = WallClock(
        shift,
        wall=lambda: start + timedelta(seconds=elapsed[0] + offset[0]),
        steady=lambda: elapsed[0],
    )

    def is_paused() -> bool:
        clock.follow()
        driver.now = clock()
        driver.perform(driver.space.connections.expire(now=driver.now))
        return driver.send_envelope(None, "coder", "chat", {"text": "x"}).refused is not None

    driver.join(1, "ada")
    driver.join(2, "coder")
    granted = {"recipient": "coder", "capabilities": [{"kind": "stream/*"}]}
    driver.send_envelope(1, "ada", "capability/grant", granted)
    driver.send_envelope(1, "ada", "participant/pause", {"timeout_seconds": 60}, to=["coder"])
    driver.leave(2, "coder")
    offset[0] = jump_seconds
    elapsed[0] = 4.0
    assert is_paused()
    assert driver.space.state.grants, "the grace of an absent participant ended early"
    elapsed[0] = 59.0
    assert is_paused()
    assert not driver.space.state.grants
    elapsed[0] = 61.0
    assert not is_paused()
    assert ParticipantId("coder") not in driver.space.members


def test_passing_time_is_no_jump() -> None:
    jumps: list[timedelta] = []
    wall, steady = datetime(2026, 1, 1, tzinfo=UTC), 0.0
    clock = WallClock(jumps.append, wall=lambda: wall, steady=lambda: steady)
    for seconds, slewed in ((1.0, 0.4), (5000.0, 0.0)):
        wall, steady = wall + timedelta(seconds=seconds + slewed), steady + seconds
        assert clock() == wall - timedelta(seconds=slewed)
        clock.follow()
        assert clock() == wall
    assert jumps == []
