"""Reminders: adding, changing, removing and rendering."""

import pytest

from mew_agent.context.reminders import HEADING, ContinuationPackage, Reminders, UnknownReminder


def render(owner: str) -> str:
    """An owner's present text."""
    return f"{owner} speaks"


def test_reminders_are_shown_in_the_order_in_which_they_were_made() -> None:
    reminders = Reminders()
    reminders.add("  The pier is long. ", at="t")
    reminders.remind("context_health", at="t")
    reminders.add("Start at the pier.", at="t", package=ContinuationPackage("clear_mind"))
    assert reminders.shown(render) == "\n".join(
        (
            HEADING,
            "- r1: The pier is long.",
            "- context_health speaks",
            "- r3 (continuation package): Start at the pier.",
        )
    )


def test_an_owner_has_one_reminder_and_its_text_is_not_stored() -> None:
    reminders = Reminders()
    reminders.remind("context_health", at="t")
    reminders.remind("context_health", at="later")
    (one,) = reminders.all
    assert (one.text, one.at) == ("", "t")
    reminders.unremind("context_health")
    assert reminders.all == ()


def test_a_changed_reminder_keeps_its_name() -> None:
    reminders = Reminders()
    made = reminders.add("old", at="t", package=ContinuationPackage("context_health", "critical"))
    reminders.update(made.id, "new", package=None)
    (one,) = reminders.all
    assert (one.id, one.text, one.package) == ("r1", "new", None)


def test_names_are_never_used_twice() -> None:
    reminders = Reminders()
    reminders.delete(reminders.add("one", at="t").id)
    assert reminders.add("two", at="t").id == "r2"
    again = Reminders(reminders.all, reminders.made)
    assert again.add("three", at="t").id == "r3"


@pytest.mark.parametrize("name", ["r9", "r1"])
def test_neither_a_strangers_reminder_nor_an_owners_can_be_changed(name: str) -> None:
    reminders = Reminders()
    reminders.remind("context_health", at="t")
    reminders.add("mine", at="t")
    with pytest.raises(UnknownReminder, match=rf"no reminder '{name}' \(known: r2\)"):
        reminders.update(name, "new", package=None)
    with pytest.raises(UnknownReminder):
        reminders.delete(name)


def test_an_empty_reminder_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a text"):
        Reminders().add(" \n", at="t")
