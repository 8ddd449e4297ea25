"""The compactions of one context: one at a time, each answered and announced in the same way."""

import anyio
import pytest
from mew_protocol.payloads.participant import CompactDone
from mew_protocol.status_word import StatusWord, status_word

from mew_agent.errors import NotConnected
from mew_agent.participant.compaction_driver import NOT_NEEDED, Begun, CompactionDriver, Requester, Work

DONE = CompactDone(status="compacted")


class Scene:
    """A driver, and everything that it sends."""

    def __init__(self, *, is_stalled: bool = False) -> None:
        self.sent: list[str] = []
        self.ended: list[tuple[str, str | None, bool]] = []
        self.driver = CompactionDriver(self.announce, is_stalled=lambda: is_stalled, ended=self.note)
        self.ada = Requester("ada", ("e1",), self.answer, status_word("active"))

    async def announce(self, word: StatusWord | None, about: tuple[str, ...]) -> None:
        self.sent.append(" ".join((str(word), *about)))

    async def answer(self, done: CompactDone) -> None:
        self.sent.append(f"answer {done.reason or done.status}")

    def note(self, trigger: str, reason: str | None, done: CompactDone) -> None:
        self.ended.append((trigger, reason, done.skipped))


def ends_with(done: CompactDone) -> Work:
    async def work(begun: Begun) -> CompactDone:
        await begun()
        return done

    return work


@pytest.mark.parametrize(
    ("trigger", "done", "is_stalled", "sent"),
    [
        ("requested", DONE, False, ["compacting e1", "answer compacted", "compacted e1"]),
        ("requested", "no_history", False, ["compacting e1", "answer no_history", "active e1"]),
        ("requested", "timeout", True, ["compacting e1", "answer timeout", "compaction_failed:timeout e1"]),
        ("threshold", DONE, True, ["compacting", "compacted", "compaction_stalled:compacting does not free enough"]),
        ("threshold", "no_history", False, ["compacting", "compaction_failed:no_history"]),
        ("threshold", "no_history", True, ["compacting", "compaction_stalled:no_history"]),
        ("threshold", NOT_NEEDED, False, ["compacting"]),
        ("compact_at", "not_supported", False, ["compacting", "None"]),
    ],
)
async def test_each_end_has_its_status_after_the_answer(
    trigger: str, done: CompactDone | str, is_stalled: bool, sent: list[str]
) -> None:
    scene = Scene(is_stalled=is_stalled)
    work = ends_with(CompactDone.as_skipped(done) if isinstance(done, str) else done)
    await scene.driver.run(trigger, "long review", work, scene.ada if trigger == "requested" else None)
    assert scene.sent == sent
    assert scene.ended == [(trigger, "long review", isinstance(done, str))]


async def test_an_answer_that_cannot_be_sent_does_not_hide_the_end() -> None:
    scene = Scene()

    async def fail(_: CompactDone) -> None:
        raise NotConnected("ws://h", "gone")

    with pytest.raises(NotConnected):
        await scene.driver.run("requested", None, ends_with(DONE), Requester("ada", ("e1",), fail))
    assert scene.sent == ["compacting e1", "compacted e1"]


async def test_an_error_ends_the_compaction_and_is_raised() -> None:
    scene = Scene()

    async def work(_begun: Begun) -> CompactDone:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        await scene.driver.run("threshold", None, work)
    assert (scene.driver.is_running, scene.ended, scene.sent) == (False, [("threshold", None, True)], [])


async def test_an_error_is_the_answer_to_a_requester_and_announced() -> None:
    scene = Scene()

    async def work(begun: Begun) -> CompactDone:
        await begun()
        raise RuntimeError("the disk is full")

    await scene.driver.run("requested", None, work, scene.ada)
    problem = "RuntimeError: the disk is full"
    assert scene.sent == ["compacting e1", f"answer {problem}", f"compaction_failed:{problem} e1"]
    assert scene.ended == [("requested", None, True)]


async def test_the_status_says_so_only_once_there_is_something_to_compact() -> None:
    scene = Scene()
    words = [scene.driver.word]

    async def work(begun: Begun) -> CompactDone:
        words.append(scene.driver.word)
        await begun()
        words.append(scene.driver.word)
        return DONE

    await scene.driver.run("threshold", None, work)
    assert [*words, scene.driver.word] == [None, None, status_word("compacting"), None]


async def test_a_cancelled_compaction_ends() -> None:
    scene = Scene()

    async def work(_begun: Begun) -> CompactDone:
        scope.cancel()
        await anyio.sleep_forever()
        return DONE

    with anyio.CancelScope() as scope:
        await scene.driver.run("threshold", None, work)
    assert (scene.driver.is_running, scene.ended, scene.sent) == (False, [("threshold", None, True)], [])


async def test_a_request_during_a_compaction_is_answered_at_once_and_announces_nothing() -> None:
    scene, may_end = Scene(), anyio.Event()

    async def wait(begun: Begun) -> CompactDone:
        await begun()
        await may_end.wait()
        return DONE

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(scene.driver.run, "threshold", None, wait)
        await anyio.wait_all_tasks_blocked()
        await scene.driver.run("requested", None, ends_with(DONE), scene.ada)
        assert scene.sent == ["compacting", "answer compaction_in_progress"]
        may_end.set()
        await scene.driver.wait_until_idle()
    assert scene.sent[2:] == ["compacted"]
    assert len(scene.ended) == 1
