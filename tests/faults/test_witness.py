"""The witness finds each kind of broken promise, and accepts what keeps them all."""

import pytest

from tests.faults.witness import ChatKey, DeliveryWitness, SendOutcome

FIRST, SECOND, THIRD = (ChatKey("bob", number) for number in (1, 2, 3))


def witness_of(*arrivals: list[ChatKey], **outcomes: SendOutcome) -> DeliveryWitness:
    witness = DeliveryWitness([f"m{number}" for number in range(len(arrivals))])
    for member, arrived in zip(witness.arrivals, arrivals, strict=True):
        witness.arrivals[member] += arrived
    reported = {"one": FIRST, "two": SECOND, "three": THIRD}
    witness.outcomes |= {reported[name]: outcome for name, outcome in outcomes.items()}
    return witness


def test_kept_promises_are_no_violation() -> None:
    every = [FIRST, SECOND]
    kept = {"one": SendOutcome.CONFIRMED, "two": SendOutcome.UNKNOWN, "three": SendOutcome.UNKNOWN}
    assert witness_of(every, list(every), **kept).violations() == []


@pytest.mark.parametrize(
    ("arrivals", "outcome", "violation"),
    [
        (([FIRST, SECOND], [SECOND]), SendOutcome.CONFIRMED, "m1 never got the confirmed chat 1 of bob"),
        (([FIRST, FIRST], [FIRST]), SendOutcome.CONFIRMED, "m0 got chat 1 of bob 2 times"),
        (([SECOND, FIRST], [SECOND, FIRST]), SendOutcome.CONFIRMED, "m0 got chat 1 of bob after number 2"),
        (([FIRST], [FIRST]), SendOutcome.NEVER_SENT, "m0 got chat 1 of bob, which its sender was told is never sent"),
        (([FIRST], [FIRST]), SendOutcome.REFUSED, "m0 got chat 1 of bob, which its sender was told is refused"),
        (
            ([FIRST, SECOND], [SECOND, FIRST]),
            SendOutcome.UNKNOWN,
            "place 0: m0 got chat 1 of bob, m1 got chat 2 of bob",
        ),
        (([FIRST, SECOND], [FIRST]), SendOutcome.UNKNOWN, "m0 and m1 got 2 and 1 chats"),
    ],
)
def test_each_broken_promise_is_found(
    arrivals: tuple[list[ChatKey], ...], outcome: SendOutcome, violation: str
) -> None:
    assert violation in witness_of(*arrivals, one=outcome).violations()


def test_a_reported_gap_excuses_what_is_missing() -> None:
    witness = witness_of([FIRST, SECOND], [SECOND], one=SendOutcome.CONFIRMED)
    witness.gaps["m1"] += 1
    assert witness.violations() == []
