"""Conversations of any shape: turns with questions, answers, tool calls alone and in parallel batches."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from mew_agent.context.history import History
from mew_agent.model.interface import ToolCall


@dataclass(frozen=True)
class MadeTurn:
    """One turn: each step is how many tools a reply calls in parallel; `answered` says whether an answer ends it."""

    steps: tuple[int, ...] = ()
    answered: bool = True


def history_of(turns: Sequence[MadeTurn], texts: Sequence[str] = ("some words",)) -> History:
    """A history with these turns; texts are taken in a circle."""
    history = History()
    said = 0

    def text() -> str:
        nonlocal said
        said += 1
        return texts[said % len(texts)]

    for turn in turns:
        history.begin_turn()
        history.append("user", text(), id=f"u{history.next_seq}", at="t")
        for width in turn.steps:
            ids = [f"call-{history.next_seq}-{number}" for number in range(width)]
            calls = tuple(ToolCall(call_id, "read", "{}") for call_id in ids)
            history.append("assistant", "", id=f"a{history.next_seq}", at="t", tool_calls=calls)
            for call_id in ids:
                history.append("tool", text(), id=f"r{history.next_seq}", at="t", tool_call_id=call_id)
        if turn.answered:
            history.append("assistant", text(), id=f"a{history.next_seq}", at="t")
    return history


TURNS = st.lists(
    st.builds(MadeTurn, st.lists(st.integers(1, 3), max_size=3).map(tuple), st.booleans()),
    max_size=8,
)


def splits_a_pair(history: History, first_seq: int, last_seq: int) -> bool:
    """Whether taking out this range separates a tool call from one of its results."""
    requested = {call.id: item.seq for item in history.items for call in item.tool_calls}
    return any(
        (first_seq <= requested[item.tool_call_id] <= last_seq) != (first_seq <= item.seq <= last_seq)
        for item in history.items
        if item.tool_call_id in requested
    )
