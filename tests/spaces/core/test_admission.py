"""The checks before the capability check: rate limits and well-formed envelopes."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mew_protocol import errors
from mew_protocol.envelope import Draft
from mew_spaces.core.admission import TokenBucket, malformed

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_a_bucket_allows_a_burst_and_then_its_rate() -> None:
    bucket = TokenBucket(per_second=2, burst=3, now=START)
    assert [bucket.try_spend(START) for _ in range(4)] == [True, True, True, False]
    assert [bucket.try_spend(at(0.4)), bucket.try_spend(at(0.5)), bucket.try_spend(at(0.5))] == [False, True, False]


def test_a_long_wait_fills_one_burst_only() -> None:
    bucket = TokenBucket(per_second=1_000, burst=2, now=START)
    assert [bucket.try_spend(at(3600)) for _ in range(3)] == [True, True, False]


def test_a_clock_that_goes_back_adds_no_permits() -> None:
    bucket = TokenBucket(per_second=1, burst=1, now=START)
    assert bucket.try_spend(START)
    assert not bucket.try_spend(at(-100))
    assert bucket.try_spend(at(-99))


@given(steps=st.lists(st.floats(0, 5), max_size=200), burst=st.integers(1, 20), rate=st.floats(0.1, 50))
def test_a_bucket_never_exceeds_burst_plus_rate(steps: list[float], burst: int, rate: float) -> None:
    bucket = TokenBucket(per_second=rate, burst=burst, now=START)
    now, spent = 0.0, 0
    for step in steps:
        now += step
        spent += bucket.try_spend(at(now))
    assert spent <= burst + now * rate + 1e-3 * (len(steps) + 1)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({}, errors.INVALID_ENVELOPE),
        ({"kind": " "}, errors.INVALID_ENVELOPE),
        ({"kind": "k" * 33}, errors.INVALID_ENVELOPE),
        ({"kind": "k", "id": "i" * 129}, errors.INVALID_ENVELOPE),
        ({"kind": "k", "from": "other"}, errors.IDENTITY_MISMATCH),
        ({"kind": "system/register"}, errors.INVALID_REQUEST),
        ({"kind": "system/error"}, errors.RESERVED_KIND),
        ({"kind": "system/anything"}, errors.RESERVED_KIND),
        ({"kind": "space/invite-ack"}, errors.RESERVED_KIND),
        ({"kind": "chat", "payload": {"text": 5}}, errors.INVALID_PAYLOAD),
        ({"kind": "mcp/request"}, errors.INVALID_PAYLOAD),
    ],
)
def test_a_malformed_envelope_is_refused(message: dict[str, Any], error: str) -> None:
    problem = malformed(Draft.model_validate(message), "me", 32)
    assert problem is not None
    assert problem.error == error
    assert problem.message
    is_malformed = error in (errors.INVALID_ENVELOPE, errors.INVALID_PAYLOAD)
    assert problem.code == (errors.VALIDATION_ERROR if is_malformed else None)


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "k" * 32, "id": "i" * 128, "from": "me"},
        {"kind": "system/heartbeat"},
        {"kind": "chat", "payload": {"text": "x"}},
        {"kind": "mcp/request", "payload": {"method": "x"}},
        {"kind": "space/invite"},
        {"kind": "systematic/x"},
    ],
)
def test_a_well_formed_envelope_passes(message: dict[str, Any]) -> None:
    assert malformed(Draft.model_validate(message), "me", 32) is None
