"""What a summary holds when not everything has room."""

import pytest

from mew_agent.compaction.completion import RECALL_NOTE, completed_summary
from mew_agent.compaction.extract import extract
from mew_agent.context.archive import query_of
from mew_agent.context.history import Item, Summary

FILLER = ("The coffee machine is loud again today.", "We talked about the poster last week.")
PORT, OWNER = "The port of the importer is 8080.", "Grace Okonkwo heads the board of env-17."


def talk(*texts: str, name: str | None = "ada") -> list[Item]:
    """Return these messages of one person, each answered."""
    items: list[Item] = []
    for turn, text in enumerate(texts):
        items.append(Item(2 * turn, "user", text, turn, f"u{turn}", "t", name=name, envelope_id=f"env-{turn}"))
        items.append(Item(2 * turn + 1, "assistant", "Understood.", turn, f"a{turn}", "t"))
    return items


def completed(
    text: str, items: list[Item], budget: int, previous: Summary | None = None, *, may_recall: bool = True
) -> Summary:
    found = extract(items, previous.facts if previous else ())

    def size(line: str) -> int:
        return -(-len(line) // 4)

    return completed_summary(text, found, budget, size, items=items, previous=previous, may_recall=may_recall)


def test_repeated_sentences_leave_their_room_to_facts() -> None:
    said = talk(FILLER[0], FILLER[1], PORT, FILLER[0], FILLER[1], FILLER[0], OWNER, *FILLER, "Go on.")
    text = completed("", said, 62).text
    assert PORT in text
    assert OWNER in text
    assert not any(filler in text for filler in FILLER)


def test_a_model_that_repeats_messages_gets_no_room_for_filler() -> None:
    said = talk(*FILLER, PORT, *FILLER, OWNER, *FILLER, "Go on.")
    copied = "## Goal and request\n" + "\n".join(f"- user: {filler}" for filler in FILLER)
    summary = completed(copied, said, 55)
    assert PORT in summary.text
    assert OWNER in summary.text
    assert not any(filler in summary.text for filler in FILLER)


def test_a_models_own_words_keep_their_room() -> None:
    said = talk(*FILLER, PORT, OWNER, "Go on.")
    own = "## Done so far\n- The importer was moved, and its board was informed."
    assert "- The importer was moved, and its board was informed." in completed(own, said, 60).text


def test_lines_of_an_earlier_summary_are_merged_without_nested_marks() -> None:
    said = talk(PORT, OWNER, "Go on.")
    first = completed("", said, 200)
    copied = first.text.replace("- ", "- - user: - ").replace("> ", "- > ") + "\n- - A line of its own."
    second = completed(copied, talk("Go on now."), 200, first)
    assert second.text.count(PORT) == 1
    assert "- - " not in second.text
    assert "- A line of its own." in second.text


@pytest.mark.parametrize("may_recall", [True, False])
def test_a_summary_names_words_to_search_for_omitted_facts(may_recall: bool) -> None:
    parts = [f"The part sensor_{number} measured {number}7 units in the north hall." for number in range(20)]
    summary = completed("", talk(*parts, "Go on."), 120, may_recall=may_recall)
    note = [line for line in summary.text.splitlines() if line.startswith(RECALL_NOTE)]
    assert len(note) == may_recall
    if may_recall:
        named = note[0].removeprefix(RECALL_NOTE).removesuffix(")").split(", ")
        lost = [part for part in parts if part not in summary.text]
        assert named
        assert all(any(word in part for part in lost) and query_of(word) for word in named)
        later = completed("", talk("Go on now."), 120, summary)
        assert named[0] in later.text.splitlines()[-1]


def test_names_of_one_person_give_way_to_facts() -> None:
    parts = [f"The part sensor_{number} measured {number}7 units." for number in range(20)]
    alone = completed("", talk(*parts), 150).text
    assert "(Lines with > quote ada.)" in alone
    assert "ada: " not in alone
    both = completed("", [*talk(*parts), *talk("Sensors are in the north hall of plant_2.", name="bob")], 150).text
    assert "- ada: " in both


def test_a_fact_in_a_kept_message_needs_no_line() -> None:
    rule, tail = "Never open port 8080.", talk("Never open port 8080.", "Go on.")
    found = extract(talk(rule, PORT, "Go on."))

    def text(staying: list[Item]) -> Summary:
        return completed_summary("", found, 200, len, items=(), previous=None, staying=staying)

    assert rule in text([]).text
    assert rule not in text(tail).text
    assert rule in {fact.text for fact in text(tail).facts}, "the next compaction states it again"
    assert rule in text(talk(rule, name="bob")).text
    tool = Item(9, "tool", rule, 4, "t9", "t", tool_call_id="c")
    assert rule in text([tool]).text


def test_a_label_counts_for_the_rest_of_its_line() -> None:
    said = talk("HARD CONSTRAINT: Budget is 500 EUR. External calls stay in the sandbox.\nIt rains.", "Go.", "Go.")
    kinds = {fact.text: fact.kind for fact in extract(said).facts}
    assert kinds["External calls stay in the sandbox."] == "rule"
    assert kinds.get("It rains.") != "rule"


def test_a_fact_of_an_older_session_has_its_worth() -> None:
    previous = completed("", talk(PORT, OWNER, "Go on."), 200)
    old = Summary(
        previous.text, facts=tuple(type(one)(one.kind, one.text, one.source, one.by) for one in previous.facts)
    )
    assert PORT in completed("", talk(*FILLER), 60, old).text
