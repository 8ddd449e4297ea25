"""Clients share the time of a server."""

import pytest
from mew_listener.time_share import BURST_SECONDS, BYTES_A_SECOND, MAX_CLIENTS, SHARE, Allowances


def test_a_client_within_its_part_never_waits() -> None:
    allowances = Allowances()
    for second in range(100):
        assert allowances.spend("ada", SHARE / 4, int(BYTES_A_SECOND * SHARE / 8), float(second)) == 0
    assert allowances.spend("bob", BURST_SECONDS / 2, 0, 100.0) == 0


def test_a_client_waits_until_it_has_time_again() -> None:
    allowances = Allowances()
    assert allowances.spend("ada", BURST_SECONDS + SHARE, 0, 0.0) == pytest.approx(1.0)
    assert allowances.spend("ada", 0.0, 0, 0.5) == pytest.approx(0.5)
    assert allowances.spend("ada", 0.0, 0, 1.5) == 0


def test_bytes_count_as_time() -> None:
    assert Allowances().spend("ada", 0.0, BYTES_A_SECOND, 0.0) == pytest.approx((1 - BURST_SECONDS) / SHARE)


def test_greedy_clients_share_one_part_and_others_do_not_wait() -> None:
    allowances = Allowances()
    names = [f"m{number}" for number in range(10)]
    for name in names:
        allowances.spend(name, 1.0, 0, 0.0)
    assert allowances.spend("ada", BURST_SECONDS / 2, 0, 0.0) == 0
    waits = {name: allowances.spend(name, 0.0, 0, 1.0) for name in names}
    # Each gets a tenth of the part, and has that much less to wait for.
    assert all(wait == pytest.approx((0.5 - SHARE / 10) * 10 / SHARE) for wait in waits.values())
    assert allowances.spend("m0", 0.0, 0, 100.0) == 0
    assert allowances.spend("m1", BURST_SECONDS + SHARE, 0, 100.0) == pytest.approx(1.0)


def test_few_clients_are_remembered() -> None:
    allowances = Allowances()
    for number in range(MAX_CLIENTS + 10):
        allowances.spend(str(number), 0.0, 0, 0.0)
    assert len(allowances._left) == MAX_CLIENTS
