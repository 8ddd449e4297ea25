"""The witness finds each kind of broken promise, and accepts what keeps them all."""

import pytest

from tests.faults.witness import ChatKey, DeliveryWitness, FrameWitness, QuestionWitness, SendOutcome

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


def test_unconfirmed_chats_may_be_late_where_several_gateways_hold_a_space() -> None:
    for outcome, found in ((SendOutcome.UNKNOWN, []), (SendOutcome.CONFIRMED, ["m0 got chat 1 of bob after number 2"])):
        witness = DeliveryWitness(["m0"], unconfirmed_may_be_late=True)
        witness.arrivals["m0"] += [SECOND, FIRST]
        witness.outcomes |= {FIRST: outcome, SECOND: SendOutcome.CONFIRMED}
        assert witness.violations() == found


def test_a_reported_gap_explains_missing_envelopes() -> None:
    witness = witness_of([FIRST, SECOND], [SECOND], one=SendOutcome.CONFIRMED)
    witness.gaps["m1"] += 1
    assert witness.violations() == []


@pytest.mark.parametrize(
    ("outcome", "answers", "starts", "conclusions", "violation"),
    [
        (SendOutcome.CONFIRMED, 1, 2, 2, None),
        (SendOutcome.UNKNOWN, 0, 0, 0, None),
        (SendOutcome.UNKNOWN, 1, 1, 1, None),
        (SendOutcome.CONFIRMED, 0, 1, 1, "m0 saw 0 answers to question q, which is confirmed"),
        (SendOutcome.CONFIRMED, 2, 1, 1, "m0 saw 2 answers to question q, which is confirmed"),
        (SendOutcome.UNKNOWN, 2, 1, 1, "m0 saw 2 answers to question q, which is not confirmed"),
        (SendOutcome.REFUSED, 1, 1, 1, "m0 saw 1 answers to question q, which is refused"),
        (SendOutcome.CONFIRMED, 1, 1, 0, "m0 saw 1 starts and 0 conclusions of reasoning r0"),
    ],
)
def test_questions_are_answered_once_and_reasonings_end(
    outcome: SendOutcome, answers: int, starts: int, conclusions: int, violation: str | None
) -> None:
    witness = QuestionWitness(["m0"])
    witness.outcomes["q"] = outcome
    witness.answers["m0"]["q"] = answers
    witness.starts["m0"].update(f"r{number}" for number in range(starts))
    witness.conclusions["m0"].update(f"r{number}" for number in range(conclusions))
    assert witness.violations() == ([] if violation is None else [violation])
    assert bool(witness.open()) is (outcome is SendOutcome.CONFIRMED and not answers)
    assert witness.is_concluded() is (starts == conclusions)


@pytest.mark.parametrize(
    ("numbers", "gaps", "violation"),
    [
        ([0, 1, 2], [], None),
        ([0, 3], [2], None),
        ([0, 3], [None], None),
        ([0, 1], [2], None),
        ([0, 3], [1], "m0 missed 2 frames of s and was told of 1"),
        ([0, 1, 1], [], "m0 got frames of s twice or out of order"),
        ([0, 1, 2, 3], [1], "m0 got 4 frames of s and was told of 1 missed ones"),
    ],
)
def test_frames_arrive_or_are_reported_as_missed(
    numbers: list[int], gaps: list[int | None], violation: str | None
) -> None:
    witness = FrameWitness(["m0"])
    witness.sent["s"] = 4
    for number in numbers:
        witness.receive("m0", "s", number)
    for gap in gaps:
        witness.receive_gap("m0", "s", gap)
    assert (violation is None and not witness.violations()) or violation in witness.violations()
