"""The numbered history and its readers."""

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mew_spaces.gateway.history import EnvelopeHistory, Position


def history_of(*, entries: int = 10, size: int = 1_000) -> EnvelopeHistory:
    return EnvelopeHistory(epoch="e", max_entries=entries, max_bytes=size)


def data_since(history: EnvelopeHistory, sequence: int) -> list[bytes] | None:
    entries = history.since(Position("e", sequence))
    return None if entries is None else [entry.data for entry in entries]


def test_entries_are_numbered_from_one() -> None:
    history = history_of()
    assert str(history.position) == "e-0"
    history.publish(b"a")
    history.publish(b"b")
    assert str(history.position) == "e-2"
    assert data_since(history, 0) == [b"a", b"b"]
    assert data_since(history, 1) == [b"b"]
    assert data_since(history, 2) == []


def test_a_place_that_is_gone_or_never_was_is_told_apart_from_nothing_new() -> None:
    history = history_of(entries=2)
    for letter in (b"a", b"b", b"c"):
        history.publish(letter)
    assert data_since(history, 0) is None
    assert data_since(history, 1) == [b"b", b"c"]
    assert data_since(history, 4) is None
    assert history.since(Position("other", 2)) is None


def test_bytes_are_bounded_too_even_below_one_entry() -> None:
    history = history_of(size=3)
    history.publish(b"aa")
    history.publish(b"bb")
    assert data_since(history, 1) == [b"bb"]
    history.publish(b"cccc")
    assert data_since(history, 2) is None
    assert data_since(history, 3) == []


@pytest.mark.parametrize("text", ["", "e", "-1", "e-", "e-x", "e--", "e-1.5", "e-" + "9" * 30, "e-²"])
def test_what_is_no_position_is_none(text: str) -> None:
    assert Position.parse(text) is None


@given(epoch=st.text(min_size=1).filter(lambda text: text == text.strip()), sequence=st.integers(0, 10**17))
def test_a_position_is_read_as_it_is_written(epoch: str, sequence: int) -> None:
    assert Position.parse(str(Position(epoch, sequence))) == Position(epoch, sequence)


@given(
    sizes=st.lists(st.integers(0, 5), max_size=30),
    entries=st.integers(0, 6),
    size=st.integers(0, 12),
    at=st.integers(0, 30),
)
def test_whatever_is_answered_is_everything_that_followed(sizes: list[int], entries: int, size: int, at: int) -> None:
    history = history_of(entries=entries, size=size)
    published = [bytes([number % 256]) * length for number, length in enumerate(sizes)]
    for data in published:
        history.publish(data)
    answered = data_since(history, at)
    if answered is not None:
        assert answered == published[at:]
        assert len(answered) <= entries
        assert sum(map(len, answered)) <= size
    elif at <= len(published):
        assert len(published) - at > 0


async def test_waiting_ends_with_the_next_entry_for_every_reader() -> None:
    history = history_of()
    arrived: list[int] = []

    async def read(number: int) -> None:
        await history.wait_beyond(Position("e", 0))
        arrived.append(number)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(read, number)
            await anyio.wait_all_tasks_blocked()
            assert arrived == []
            history.publish(b"a")
    assert sorted(arrived) == [0, 1, 2]


async def test_who_is_behind_does_not_wait() -> None:
    history = history_of()
    history.publish(b"a")
    with anyio.fail_after(5):
        await history.wait_beyond(Position("e", 0))


async def test_closing_lets_every_reader_go() -> None:
    history = history_of()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(history.wait_beyond, history.position)
            await anyio.wait_all_tasks_blocked()
            history.close()
        await history.wait_beyond(history.position)
    assert history.is_closed
