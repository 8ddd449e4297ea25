"""Pins of one context: bounds, ids, origins, and what the report shows."""

from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mew_protocol.context_report import MAX_PIN_CHARS, MAX_PINS, pin_hash
from mew_protocol.payloads.participant import Compact
from mew_protocol.payloads.system import SpaceFacts

from mew_agent.context.history import History, Pin, pinned_text
from mew_agent.context.policy import MEW
from mew_agent.context.sqlite_store import SqliteStore
from mew_agent.context.store import StoreUnusable
from mew_agent.context.tracker import Tracker
from mew_agent.context.window import resolve_window
from mew_agent.conversation.pins import SETTINGS_ORIGIN, SPACE_ORIGIN, ContextPins, pins_of_space
from mew_agent.errors import PinRefused
from tests.support.conversation_driver import StartConversation

RULE = "never push to main"


def pins_in(window_tokens: int = 128_000) -> ContextPins:
    """Pins of a context of this size, stored nowhere."""

    async def save() -> None:
        return None

    tracker = Tracker(History(), MEW, resolve_window(window_tokens), "m")
    return ContextPins(tracker, save)


async def refusal(pins: ContextPins, text: str) -> str:
    with pytest.raises(PinRefused) as refused:
        await pins.add(text, "ada")
    return str(refused.value)


async def test_a_text_is_pinned_once() -> None:
    pins = pins_in()
    assert await pins.add(RULE, "ada")
    assert not await pins.add(RULE, "bob")
    (pin,) = pins.texts
    assert (pin.id, pin.origin, pin.text, pin.hash) == ("p1", "ada", RULE, pin_hash(RULE))
    assert pin.tokens > 0


async def test_a_text_of_wrong_length_is_refused_with_the_expected_length() -> None:
    pins = pins_in()
    assert await refusal(pins, " ") == "the text must have 1 to 4,000 characters, not 0"
    assert await refusal(pins, "x" * (MAX_PIN_CHARS + 1)) == "the text must have 1 to 4,000 characters, not 4,001"


async def test_too_many_pins_are_refused() -> None:
    pins = pins_in()
    for number in range(MAX_PINS):
        await pins.add(f"rule {number}", "ada")
    assert await refusal(pins, "one more") == "32 texts are pinned, which is the limit; unpin one first"


async def test_a_pin_that_leaves_too_little_room_is_refused_with_figures() -> None:
    pins = pins_in(400)
    problem = await refusal(pins, "word " * 300)
    assert problem.startswith("pins of about ")
    assert problem.endswith("do not fit: together at most half of the window, 200 of 400")
    assert pins.texts == ()


async def test_pins_are_removed_by_id_or_whole_text() -> None:
    pins = pins_in()
    for text in (RULE, "be brief", "be kind"):
        await pins.add(text, "ada")
    await pins.remove("p1")
    await pins.remove("be kind")
    with pytest.raises(PinRefused, match=r"'p1' is not pinned \(pins: p2\)"):
        await pins.remove("p1")
    await pins.add("new", "ada")
    assert [pin.id for pin in pins.all] == ["p2", "p4"]


async def test_a_change_that_cannot_be_stored_is_not_in_force() -> None:
    is_full = False

    async def save() -> None:
        if is_full:
            raise StoreUnusable(Path("session.sqlite3"), "database or disk is full")

    pins = ContextPins(Tracker(History(), MEW, resolve_window(128_000), "m"), save)
    for text in ("first", "second"):
        await pins.add(text, "ada")
    is_full = True
    with pytest.raises(StoreUnusable):
        await pins.add("third", "ada")
    with pytest.raises(StoreUnusable):
        await pins.remove("first")
    assert [pin.text for pin in pins.all] == ["first", "second"]


async def test_configured_pins_are_removed_only_where_they_are_configured() -> None:
    pins = pins_in()
    await pins.add(RULE, "ada")
    pins.configure(SETTINGS_ORIGIN, {"s1": "be brief"})
    pins.configure(SPACE_ORIGIN, {"instructions": "be kind"})
    with pytest.raises(PinRefused, match=r"'s1' is from the agent's settings; remove it there"):
        await pins.remove("s1")
    with pytest.raises(PinRefused, match=r"'instructions' is from space.yaml; remove it there"):
        await pins.remove("instructions")
    assert pins.made_here == (Pin("p1", RULE, "ada"),)
    pins.configure(SPACE_ORIGIN, {})
    assert [pin.id for pin in pins.all] == ["s1", "p1"]


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([RULE, "be brief", "two\nlines", "p1", "p2"])), max_size=60))
def test_any_sequence_keeps_ids_unique_and_texts_verbatim(steps: list[tuple[bool, str]]) -> None:
    async def run() -> None:
        pins, expected = pins_in(), list[str]()
        for adds, text in steps:
            if adds:
                assert await pins.add(text, "ada") == (text not in expected)
                expected += [text] if text not in expected else []
            elif text in expected or any(pin.id == text for pin in pins.all):
                gone = next(pin for pin in pins.all if text in (pin.id, pin.text))
                await pins.remove(text)
                expected.remove(gone.text)
        assert [pin.text for pin in pins.all] == expected
        assert len({pin.id for pin in pins.all}) == len(pins.all)
        assert all(text in pinned_text(pins.all) for text in expected)

    anyio.run(run)


def test_the_space_says_instructions_role_and_teammates() -> None:
    facts = SpaceFacts(
        instructions="English only.", descriptions={"coder": "reviews Python", "ada": "owns the product"}
    )
    assert pins_of_space(facts, "coder") == {
        "instructions": "English only.",
        "role": "Your part in this space: reviews Python",
        "teammates": "Others in this space:\nada: owns the product",
    }
    assert pins_of_space(SpaceFacts(), "coder") == {}


async def test_pins_are_a_part_of_the_figures_of_their_own(start_conversation: StartConversation) -> None:
    async with start_conversation() as driver:
        await driver.turn("Hello.")
        before = driver.now.context
        assert before is not None
        await driver.conversation.pins.add("The harbour office closes at five on every working day.", "ada")
        expected = driver.now.context
        assert expected is not None
        assert (expected.next_prompt_tokens or 0) > (before.next_prompt_tokens or 0) + 10
        await driver.turn("And now?")
        report = driver.now.context
        assert report is not None
        assert report.pins is not None
        (part,) = (one for one in report.breakdown or () if one.part == "pins")
        # The heading of the pins belongs to the part, not to any one of them.
        assert report.pins[0].tokens < part.tokens < report.pins[0].tokens + 60
        assert sum(one.tokens for one in report.breakdown or () if one.part != "unsent") == driver.now.tokens


async def test_pins_survive_compaction_clear_and_restart(start_conversation: StartConversation, tmp_path: Path) -> None:
    path = tmp_path / "session.sqlite"
    async with start_conversation(store=SqliteStore(path)) as driver:
        await driver.conversation.pins.add(RULE, "ada")
        await driver.conversation.pins.add("gone", "ada")
        for number in range(5):
            await driver.turn(f"Question {number}: " + "what is the tide at the harbour now? " * 10)
        assert not (await driver.conversation.compact(Compact())).skipped
        await driver.turn("After the compaction?")
        assert RULE in str(driver.server.requests[-1].body["messages"])
        await driver.conversation.clear()
        await driver.conversation.pins.remove("gone")
    async with start_conversation(store=SqliteStore(path)) as driver:
        await driver.conversation.load()
        await driver.turn("After the restart?")
        assert RULE in str(driver.server.requests[-1].body["messages"])
        await driver.conversation.pins.add("be brief", "ada")
        assert [(pin.id, pin.origin) for pin in driver.conversation.pins.all] == [("p1", "ada"), ("p3", "ada")]
