"""The examples of the documentation and the page about them, run as their reader runs them, in one space."""

import inspect
import os
import re
import shutil
import signal
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import anyio
import pytest

import mew_agent.participant.event_handlers
from mew_agent import ChatReceived, ContextReported, Participant
from mew_agent.participant.gaps import SpaceEvent
from mew_agent.parts.rehearsal.tokenizer import count
from tests.support.cli import Outcome, mew_in, run_program
from tests.support.waiting import PATIENCE_SECONDS, until
from tests.support.warm_start import MEW

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="`mew up` needs a POSIX system")

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
WINDOW_TOKENS = 4096


@dataclass
class Examples:
    """A copy of the folder whose space runs."""

    folder: Path

    def command(self, *arguments: str) -> list[str]:
        return [*MEW, *arguments]

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("MEW_", "OPENAI_"))}
        return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}

    def mew(self, *arguments: str) -> Outcome:
        """Run a command; only one that becomes another program needs a process of its own."""
        if arguments[0] != "run":
            return mew_in(self.folder, *arguments, environment=self.environment)
        return run_program(self.command(*arguments), self.folder, self.environment)

    @cached_property
    def place(self) -> dict[str, str]:
        """What programs that are run by hand find in their environment."""
        shown = self.mew("run", "env").out.splitlines()
        return dict(line.split("=", 1) for line in shown if line.startswith("MEW_"))

    def ada(self) -> Participant:
        """Ada, as a program of hers finds her place."""
        return Participant.from_environment(self.place)

    @contextmanager
    def started_by_hand(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        pipe = subprocess.PIPE
        command = self.command("run", *arguments)
        with subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        ) as program:
            try:
                yield program
            finally:
                program.kill()


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examples]:
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(EXAMPLES, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".mew", "__pycache__"))
    space = Examples(folder)
    up = space.mew("up", "--detach", "--port", "0")
    try:
        assert up.code == 0, up.out + up.err
        assert [name for name in ("coder", "dice", "steward", "words") if f"  {name}: joined" not in up.out] == []
        yield space
    finally:
        assert space.mew("down").code == 0


def test_ask_prints_the_answer_and_how_full_the_agent_is_then(examples: Examples) -> None:
    done = examples.mew("run", "ask.py", "dice", 'call roll_dice with {"sides": 20, "times": 3}')
    assert done.code == 0, done.err
    call, answer, _, context = done.out.splitlines()
    assert call == '  [roll_dice {"sides": 20, "times": 3}]'
    rolled = re.fullmatch(r"roll_dice answered: (\d+) and (\d+) and (\d+)", answer)
    assert rolled is not None
    assert all(1 <= int(number) <= 20 for number in rolled.groups())
    assert re.fullmatch(r"dice: [\d,]+ of 4,096 tokens \(reported\)", context)


def test_ask_reports_the_problem_in_one_line(examples: Examples) -> None:
    missing = examples.mew("run", "ask.py", "ghost", "Hello?")
    assert (missing.code, missing.err) == (1, "'ghost' is not in the space\n")
    usage = examples.mew("run", "ask.py", "coder")
    assert usage.err == "usage: mew run ask.py AGENT QUESTION\n"


async def test_the_word_counter_offers_a_tool_and_a_resource(examples: Examples) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        async with examples.ada() as ada:
            tools = (await ada.discover("words")).tools or ()
            assert [tool.name for tool in tools] == ["count_words", "longest_words"]
            assert (await ada.call_tool("words", "count_words", {"text": "one two three"})).text == "3"
            longest = await ada.call_tool("words", "longest_words", {"text": "a bb ccc dddd", "how_many": 2})
            assert longest.text == '["dddd", "ccc"]'
            await ada.chat("five words for you all", to="words")
            read = await ada.request("words", "resources/read", {"uri": "words://spoken"})
            assert '"ada":' in read["contents"][0]["text"]


async def test_the_steward_makes_room_before_an_agent_runs_full(examples: Examples) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        async with examples.ada() as ada:
            made_room = anyio.Event()

            @ada.on(ContextReported)
            async def note(event: ContextReported) -> None:
                last = event.context.report.last_compaction if event.context.report else None
                if event.peer.id == "coder" and last is not None and last.trigger == "requested":
                    made_room.set()

            while not made_room.is_set():
                answer = await ada.ask_agent("coder", numbers(500))
                assert answer.context.report is not None
                assert answer.context.report.level == "healthy", "it ran full before the steward acted"
            await until(lambda: "coder freed " in log_of(examples, "steward"))


async def test_the_python_agent_reports_that_little_room_is_left(examples: Examples) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        async with examples.ada() as ada:
            reported: list[str] = []

            @ada.on_chat
            async def listen(chat: ChatReceived) -> None:
                if chat.sender == "dice" and chat.text.startswith("I am "):
                    reported.append(chat.text)

            before = (await ada.ask_agent("dice", "Hello.")).context.tokens
            assert before is not None
            await ada.ask_agent("dice", numbers(WINDOW_TOKENS * 93 // 100 - before))
            await until(lambda: reported != [])
            said = re.fullmatch(r"I am near_limit: ([34],\d\d\d) of 4,096 tokens\.", reported[0])
            assert said is not None, reported
            assert int(said[1].replace(",", "")) >= WINDOW_TOKENS * 9 // 10


async def test_approve_permits_harmless_calls_and_asks_about_the_rest(examples: Examples) -> None:
    with examples.started_by_hand("approve.py") as deciding:
        assert deciding.stdin is not None
        assert deciding.stdout is not None
        assert deciding.stdout.readline() == "waiting for proposals; press Ctrl-C to stop\n"
        with anyio.fail_after(PATIENCE_SECONDS):
            async with examples.ada() as ada:
                counted = await ada.ask_agent("coder", 'call count_words with {"text": "one two three"}')
                assert counted.text.endswith("answered: 3")
                deciding.stdin.write("y\nnot today\n")
                deciding.stdin.flush()
                allowed = await ada.ask_agent("coder", 'call longest_words with {"text": "a bbb"}')
                assert '["bbb", "a"]' in allowed.text
                refused = await ada.ask_agent("coder", 'call longest_words with {"text": "cc d"}')
                assert "not today" in refused.text
        deciding.send_signal(signal.SIGINT)
        shown, reported = deciding.communicate(timeout=PATIENCE_SECONDS)
    assert (deciding.returncode, reported) == (130, "")
    assert "'coder' proposes to call 'count_words' on 'words' with {\"text\": \"one two three\"}: harmless\n" in shown
    assert shown.count("Approve? [y/N] ") == 2


def test_the_pages_show_every_example() -> None:
    pages = [(ROOT / "docs" / "how-to" / name).read_text(encoding="utf-8") for name in ("examples.md", "libraries.md")]
    shown = set(re.findall(r'^--8<-- "(.+)"$', "\n".join(pages), re.MULTILINE))
    assert shown == {path.name for path in EXAMPLES.iterdir() if path.is_file()}


def test_the_python_page_lists_every_event() -> None:
    page = (ROOT / "docs" / "how-to" / "python.md").read_text(encoding="utf-8")
    listed = page[page.index("| Event |") : page.index("accepts every event class")]
    members = vars(mew_agent.participant.event_handlers).items()
    events = {name for name, value in members if is_event(value) and not name.startswith("_")}
    assert events == {name for name in re.findall(r"`(\w+)`", listed) if name in events}


def is_event(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, SpaceEvent)


def numbers(tokens: int) -> str:
    """A text of at most so many tokens of the rehearsal model, and hardly fewer."""
    size = bisect_left(range(tokens), tokens, key=lambda upto: count(" ".join(map(str, range(upto)))))
    return " ".join(map(str, range(size - 1)))


def log_of(examples: Examples, name: str) -> str:
    path = examples.folder / ".mew" / "logs" / f"{name}.log"
    return path.read_text(encoding="utf-8") if path.exists() else ""
