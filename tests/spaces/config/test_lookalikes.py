"""Which ids a person could take for another."""

import pytest
from mew_spaces.config.lookalikes import alike, imitates_ascii


@pytest.mark.parametrize(
    ("name", "other"),
    [
        *(
            ("\u0430da", "ada"),
            ("ad\u0251", "ada"),
            ("\uff41da", "ada"),
            ("ADA", "ada"),
            ("K\u00e4th\u0435", "Ka\u0308the"),
        ),
        *(("\u0455\u0441\u043e\u0443t", "scoyt"), ("\u0440\u0430\u0443", "pay"), ("\u217cee", "lee")),
        *((f"a{blank}da", "ada") for blank in "\ufe0f\u034f\u3164\u115f\u17b4\u180b\u2800\U000e0100"),
        ("\u1d00da", "ada"),
        ("\u2764\ufe0f", "\u2764"),
    ],
)
def test_an_id_of_other_letters_is_taken_for_the_one_it_imitates(name: str, other: str) -> None:
    assert alike(name, ["nobody", other]) == other
    assert alike(other, ["nobody", name]) == name


@pytest.mark.parametrize(
    ("name", "other"), [("al", "a1"), ("m", "rn"), ("K\u00e4the", "Kathe"), ("\u0430\u043d\u043d\u0430", "anna")]
)
def test_ids_that_people_tell_apart_are_both_allowed(name: str, other: str) -> None:
    assert alike(name, [other]) is None


def test_only_ids_without_a_letter_of_their_own_imitate_ascii() -> None:
    assert all(
        map(imitates_ascii, ("g\u0430teway", "\u0455ystem:x", "\uff21da", "\u0440\u0430\u0443", "m\ufe0f", "\u1d00da"))
    )
    assert not any(map(imitates_ascii, ("gateway", "K\u00e4the", "\u0430\u043d\u043d\u0430", "\u674e", "\u5c71\u7530")))
