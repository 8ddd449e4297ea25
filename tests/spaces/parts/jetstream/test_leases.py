"""When a lease expires, decided by the order and the times of stored renewals."""

from mew_spaces.parts.jetstream.leases import LeaseTable

RENEWED = b"held"


def table(*renewals: tuple[str, float]) -> LeaseTable:
    """A table of leases of 10 seconds that has read these renewals."""
    read = LeaseTable(10.0)
    for sequence, (name, at) in enumerate(renewals, start=1):
        read.read(name, RENEWED, sequence=sequence, at=at)
    return read


def test_a_lease_ends_when_others_were_renewed_for_its_time() -> None:
    renewals = [("a", 0.0), *(("b", float(second)) for second in range(1, 11))]
    assert set(table(*renewals[:-1]).in_force()) == {"a", "b"}
    assert set(table(*renewals).in_force()) == {"b"}


def test_an_outage_ends_no_lease() -> None:
    assert set(table(("a", 0.0), ("b", 1.0), ("b", 3_600.0)).in_force()) == {"a", "b"}


def test_a_clock_that_goes_back_ends_no_lease() -> None:
    assert set(table(("a", 100.0), ("b", 50.0), ("b", 53.0)).in_force()) == {"a", "b"}


def test_an_ended_lease_is_free_and_keeps_its_sequence() -> None:
    read = table(("a", 0.0))
    read.read("a", None, sequence=2, at=1.0)
    assert not read.in_force()
    assert read.sequence_of("a") == 2


def test_an_own_renewal_counts_before_it_is_read() -> None:
    read = table(("a", 0.0))
    read.note("b", RENEWED, sequence=9)
    read.read("b", None, sequence=8, at=1.0)  # older than the one noted
    assert set(read.in_force()) == {"a", "b"}
    assert read.sequence_of("b") == 9


def test_leases_survive_a_replaced_stream() -> None:
    read = table(("a", 0.0), ("a", 1.0))
    read.restart()
    assert (read.sequence, read.sequence_of("a")) == (0, 0)
    assert set(read.in_force()) == {"a"}
