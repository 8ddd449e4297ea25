"""Moments on the wire."""

from datetime import UTC, datetime, timedelta, timezone

from mew_protocol.timestamp import wire_timestamp


def test_a_moment_is_written_in_utc_with_milliseconds() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_999, tzinfo=timezone(timedelta(hours=2)))
    assert wire_timestamp(moment) == "2026-01-02T01:04:05.678Z"
    assert datetime.fromisoformat(wire_timestamp(datetime(2026, 1, 1, tzinfo=UTC))) == datetime(2026, 1, 1, tzinfo=UTC)
