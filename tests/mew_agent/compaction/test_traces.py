"""How much of each removed message a summary still holds."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from mew_agent.compaction.completion import completed_summary
from mew_agent.compaction.extract import extract
from mew_agent.compaction.traces import traces
from mew_agent.context.history import Fact, Item, ItemRole, Summary
from tests.support.operations import growth


def item(content: str, seq: int = 0, role: ItemRole = "user") -> Item:
    return Item(seq, role, content, 1, f"item-{seq}", "t", name="ada", envelope_id=f"env-{seq}")


@pytest.mark.parametrize(
    ("content", "summary", "trace"),
    [
        ("The port is 8080.", "- ada: The port is 8080. [env-0]", "quoted"),
        ("Thanks a lot. The port is 8080.", "- ada: The port is 8080.", "quoted"),
        ("The port\nis the usual one, I think.", "The port is 9090. It is the usual one, I think.", "absent"),
        ("The importer  keeps its rows.", 'Ada said: "The importer keeps its rows", and left.', "quoted"),
        ("Never\nrestart it.", "- ada: Please restart it.", "absent"),
        ("1. The port is 8080.", "* The port is 8080.", "quoted"),
        ("端口改为 9090。谢谢。", "- ada: 端口改为 9090。", "quoted"),
        ("The port is 80", "- The port is 8080.", "absent"),
        ("Open and next", "## Open and next\n- Nothing.", "absent"),
        ("ok", "## Done so far\n- It looks ok.", "absent"),
        ("", "- The port is 8080.", "absent"),
        ("The port is 8080.", "- It listens on 8080 [env-0].", "mentioned"),
        ("The port is 8080.", "- [... 912 characters left out ...] [env-0]", "absent"),
        ("The port is 8080.", "- It listens.", "absent"),
    ],
)
def test_a_trace_is_quoted_mentioned_or_absent(content: str, summary: str, trace: str) -> None:
    cited = ("env-0",) if "[env-0]" in summary else ()
    assert traces([item(content)], Summary(summary, cited_ids=cited)) == {0: trace}


def test_a_fact_in_other_words_mentions_its_message() -> None:
    known = Fact("fact", "The port is 8080.", "env-0", "ada")
    assert traces([item(known.text)], Summary("- It listens on 8080.", facts=(known,))) == {0: "mentioned"}


@pytest.mark.parametrize(
    "line", ["- Decision: the station of Q2 is 17.", "- Decision: the station of Q1 is 18.", "- Nothing else."]
)
def test_a_fact_that_the_summary_does_not_tell_leaves_no_trace(line: str) -> None:
    carried = Fact("decision", "Decision: the station of Q1 is 17.", "env-0", "ada")  # said by a message that stayed
    assert traces([item(carried.text)], Summary(line, facts=(carried,))) == {0: "absent"}


def test_text_from_before_a_message_leaves_no_trace_of_it() -> None:
    frame = "[Answer every message in a section of its own.]\n### ABCD-1\n"
    framed = replace(item(f"{frame}The port is 8080."), frame_chars=len(frame))
    assert framed.own_text == "The port is 8080."
    assert traces([framed], Summary("- Answer every message in a section of its own.")) == {0: "absent"}
    assert traces([framed], Summary("- ada: The port is 8080.")) == {0: "quoted"}
    assert [fact.text for fact in extract([framed]).facts] == ["The port is 8080."]


def test_a_sentence_that_a_cut_divided_is_no_fact() -> None:
    parts = ("We decided: the port is 8080.", "We decided: part 9 of\n[...]\ncode is red.", "We decided: it is K-47.")
    assert [fact.text for fact in extract([item(" ".join(parts))]).facts] == [parts[0], parts[2]]
    assert [fact.text for fact in extract([item(f"{parts[0]}\n[...]\nOr not")]).facts] == [parts[0]]


def test_nothing_has_a_trace_without_a_summary() -> None:
    assert traces([item("The port is 8080."), item("Never restart it.", 7)], None) == {0: "absent", 7: "absent"}


def test_each_fact_of_an_extract_quotes_its_message() -> None:
    items = [item(f"Never restart host-{number} without asking.", number) for number in range(12)]
    said = [*items, item("It rains.", 12, "assistant")]
    summary = completed_summary("", extract(said), 100, lambda line: len(line) // 4, items=said, previous=None)
    kept = {fact.source for fact in summary.facts}
    assert 0 < len(kept) < len(items)
    quoted = {f"env-{seq}" for seq, trace in traces(said, summary).items() if trace == "quoted"}
    assert quoted == {f"env-{one.seq}" for one in said if one.content in summary.text} >= kept


def test_the_calls_grow_with_the_number_of_messages() -> None:
    summary = Summary("\n".join(f"- ada: Never restart host-{number} without asking." for number in range(200)))

    def traced(count: int) -> Callable[[], None]:
        items = [item(f"Never restart host-{seq} without asking. It is slow today.", seq) for seq in range(count)]

        def run() -> None:
            assert list(traces(items, summary).values()).count("quoted") == 200

        return run

    assert growth(traced, 500) < 5
