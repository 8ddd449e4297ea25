"""The checks before the capability check: rate limits and well-formed envelopes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mew_protocol import errors
from mew_protocol.envelope import Draft
from mew_spaces.core.admission import MAX_KEYS, RateLimit, malformed


def test_a_rate_limit_allows_a_burst_and_then_its_rate() -> None:
    now = 0.0
    limit = RateLimit(per_second=2, burst=3, clock=lambda: now)
    assert [limit.try_spend("ada") for _ in range(4)] == [True, True, True, False]
    assert limit.try_spend("bob")
    now = 0.4
    assert not limit.try_spend("ada")
    now = 0.5
    assert [limit.try_spend("ada"), limit.try_spend("ada")] == [True, False]


def test_a_long_wait_restores_one_burst_only() -> None:
    now = 0.0
    limit = RateLimit(per_second=1_000, burst=2, clock=lambda: now)
    assert limit.try_spend("ada")
    now = 3600.0
    assert [limit.try_spend("ada") for _ in range(3)] == [True, True, False]


def test_the_key_unused_for_longest_is_forgotten() -> None:
    limit = RateLimit(per_second=0, burst=1, clock=lambda: 0.0)
    assert [limit.try_spend("first"), limit.try_spend("second")] == [True, True]
    assert not limit.try_spend("first")
    assert all(limit.try_spend(str(number)) for number in range(MAX_KEYS - 1))
    assert not limit.try_spend("first")
    assert limit.try_spend("second")


@given(steps=st.lists(st.floats(0, 5), max_size=200), burst=st.integers(1, 20), rate=st.floats(0.1, 50))
def test_a_rate_limit_never_exceeds_burst_plus_rate(steps: list[float], burst: int, rate: float) -> None:
    now, spent = 0.0, 0
    limit = RateLimit(per_second=rate, burst=burst, clock=lambda: now)
    for step in steps:
        now += step
        spent += limit.try_spend("ada")
    assert spent <= burst + now * rate + 1e-3


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({}, errors.INVALID_ENVELOPE),
        ({"kind": " "}, errors.INVALID_ENVELOPE),
        ({"kind": "k" * 129}, errors.INVALID_ENVELOPE),
        ({"kind": "k", "id": "i" * 513}, errors.INVALID_ENVELOPE),
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
    problem = malformed(Draft.model_validate(message), "me")
    assert problem is not None
    assert problem.error == error
    assert problem.message
    is_malformed = error in (errors.INVALID_ENVELOPE, errors.INVALID_PAYLOAD)
    assert problem.code == (errors.VALIDATION_ERROR if is_malformed else None)


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "k" * 128, "id": "i" * 512, "from": "me"},
        {"kind": "system/heartbeat"},
        {"kind": "chat", "payload": {"text": "x"}},
        {"kind": "mcp/request", "payload": {"method": "x"}},
        {"kind": "space/invite"},
        {"kind": "systematic/x"},
    ],
)
def test_a_well_formed_envelope_passes(message: dict[str, Any]) -> None:
    assert malformed(Draft.model_validate(message), "me") is None
