"""`mew demo`: a whole space in one command, with real parts: gateway, two agents and a model, each a process.

Owns the space it writes and its start and end, which go through `mew up` and `mew down` as a user's would. What
happens in it is `demo_story`, how it is shown `demo_view`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from mew_protocol.agent_settings import REHEARSAL
from mew_spaces.gateway.auth import read_token
from mew_spaces.launch.run_file import RunFile, read_run_file, run_file_path
from pydantic_core import to_json

from mew_agent.cli.app import terminal
from mew_agent.cli.app.signals import asked_like_ctrl_c
from mew_agent.cli.demo.story import Check, DemoFailed, Story
from mew_agent.cli.demo.texts import Part, endless, parts_of
from mew_agent.cli.demo.view import LiveTable, View, view_for
from mew_agent.cli.space.add import AGENT_CAPABILITIES
from mew_agent.errors import ConfigError
from mew_agent.participant.participant import Participant

BY_ITSELF, ON_REQUEST, YOU = "reader", "editor", "you"
WINDOW_TOKENS = 4096
LIMIT_SECONDS = 55.0
START_SECONDS = 70.0
"""`mew up` bounds itself; this is only for one that hangs all the same."""

PACE_SECONDS = 0.6
"""Between two parts, when somebody watches."""

MAX_FILE_BYTES = 20_000_000
DEFAULT_REAL_MODEL = "gpt-4o-mini"


@dataclass(frozen=True, slots=True)
class Reading:
    """One text the agents get to read."""

    path: Path
    parts: list[Part]


def demo(files: list[Path], keep: bool, as_json: bool) -> int:
    """Play the demo. Returns the exit code; raises `ConfigError` for files that cannot be read as text."""
    readings = [read_text_file(path) for path in files or default_files()]
    view = view_for(as_json=as_json, names=(BY_ITSELF, ON_REQUEST))
    started = time.monotonic()
    with asked_like_ctrl_c(), running_space(keep=keep) as (run, folder, thinks_with):
        with view:
            view.show(
                {
                    "event": "started",
                    "model": thinks_with,
                    "agents": [BY_ITSELF, ON_REQUEST],
                    "files": [reading.path.name for reading in readings],
                    "gateway": run.gateway,
                }
            )
            checks = anyio.run(play, run, folder, readings, view)
            view.show(summary_event(checks, time.monotonic() - started))
        if not as_json:
            width = terminal.look(sys.stdout).width
            terminal.say_lines(summary_lines(checks, time.monotonic() - started, width=width))
        if keep:
            tell_kept(view, run, folder, as_json=as_json)
    return terminal.DONE


async def play(run: RunFile, folder: Path, readings: list[Reading], view: View) -> list[Check]:
    """Join the running space as its person and play the story. Raises `DemoFailed` past the time limit."""

    async def tell(event: dict[str, Any]) -> None:
        view.show(event)

    token = read_token(folder / ".mew", YOU, environ={}) or ""
    with anyio.move_on_after(LIMIT_SECONDS):
        async with Participant(run.ws, space=run.space, id=YOU, token=token) as me:
            pace = PACE_SECONDS if isinstance(view, LiveTable) else 0.0
            story = Story(me, by_itself=BY_ITSELF, on_request=ON_REQUEST, tell=tell, pace_seconds=pace)
            return await story.play(hand_out(readings))
    raise DemoFailed(f"the demo did not end within {LIMIT_SECONDS:g} seconds; is the model this slow?")


def hand_out(readings: list[Reading]) -> dict[str, Iterator[Part]]:
    """Each agent reads everything; the second begins with another text."""
    first = [part for reading in readings for part in reading.parts]
    second = [part for reading in (*readings[1:], *readings[:1]) for part in reading.parts]
    return {BY_ITSELF: endless(first), ON_REQUEST: endless(second)}


# -- the texts -----------------------------------------------------------------------------------------------


def default_files() -> list[Path]:
    """The pages that explain the project, from a clone or from the installed package."""
    for folder in (Path(__file__).parents[3] / "docs" / "explanation", Path(__file__).parents[2] / "_docs"):
        found = sorted(folder.glob("*.md"))
        if found:
            return found
    raise ConfigError("mew demo", "the project's documents are not installed", "one or more text files to read")


def read_text_file(path: Path) -> Reading:
    """Read a file as UTF-8 text and cut it into parts. Raises `ConfigError` naming the file and what is wrong."""
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ConfigError(str(path), f"is {size:,} bytes long", f"at most {MAX_FILE_BYTES:,}")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(str(path), error.strerror or str(error), "a text file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), f"is not UTF-8 text (byte {error.start:,})", "a text file") from None
    if "\x00" in text:
        raise ConfigError(str(path), f"is not text (a NUL byte at {text.index(chr(0)):,})", "a text file")
    parts = parts_of(path, text)
    if not parts:
        raise ConfigError(str(path), "is empty", "a text file with something to read")
    return Reading(path, parts)


# -- the space -----------------------------------------------------------------------------------------------


def write_space(folder: Path, environ: Mapping[str, str]) -> str:
    """Write the demo's space.yaml. Returns what its agents think with, in words."""
    real = bool(environ.get("OPENAI_API_KEY") or environ.get("OPENAI_BASE_URL"))
    agent: dict[str, Any] = {"model": REHEARSAL, "base_url": REHEARSAL, "context_token_limit": WINDOW_TOKENS}
    words = f"the rehearsal model (no language model: it quotes), window {WINDOW_TOKENS:,} tokens,"
    if real:
        name = environ.get("OPENAI_MODEL") or DEFAULT_REAL_MODEL
        agent = {"model": name, "context_token_limit": WINDOW_TOKENS}
        words = f"{name}, held to {WINDOW_TOKENS:,} tokens,"
    capabilities = [{"kind": kind} for kind in AGENT_CAPABILITIES]
    space = {
        "space": {"id": "demo", "name": "mew demo", "default_participant": YOU},
        "participants": {
            YOU: {"capabilities": [{"kind": "*"}]},
            **{
                name: {"agent": agent, "auto_start": True, "capabilities": capabilities}
                for name in (BY_ITSELF, ON_REQUEST)
            },
        },
    }
    # JSON is YAML, and needs no writer of its own.
    (folder / "space.yaml").write_bytes(to_json(space, indent=2))
    return words


@contextmanager
def running_space(*, keep: bool) -> Iterator[tuple[RunFile, Path, str]]:
    """`mew up` for the block, then `mew down` and away with the folder, unless it is to be kept and all went well.

    Gives its run file, its folder, and what its agents think with, in words.
    """
    kept = False
    folder = Path(tempfile.mkdtemp(prefix="mew-demo-"))
    try:
        thinks_with = write_space(folder, os.environ)
        run_mew("up", "--detach", "--space-dir", str(folder), "--port", "0")
        run = read_run_file(run_file_path(folder / ".mew"))
        if run is None:
            raise DemoFailed("`mew up` left no run file")
        yield run, folder, thinks_with
        kept = keep
    finally:
        if not kept:
            run_mew("down", "--space-dir", str(folder), check=False)
            shutil.rmtree(folder, ignore_errors=True)


def run_mew(*arguments: str, check: bool = True) -> None:
    """Run one of our own commands, as a user would. Raises `DemoFailed` with what it said."""
    command = [sys.executable, "-m", "mew_agent", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:  # noqa: S603
        try:
            said, complained = child.communicate(timeout=START_SECONDS)
        except BaseException as error:
            child.terminate()  # then it undoes what it began, and only then is it done
            child.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise DemoFailed(f"`mew {arguments[0]}` did not end within {START_SECONDS:g} seconds") from None
            raise
    if check and child.returncode:
        raise DemoFailed((complained or said).strip().removeprefix("mew: "))


# -- the end -------------------------------------------------------------------------------------------------


def summary_event(checks: list[Check], seconds: float) -> dict[str, Any]:
    """The outcome as an event."""
    return {"event": "summary", "seconds": round(seconds, 1), "checks": [check.as_event() for check in checks]}


def summary_lines(checks: list[Check], seconds: float, *, width: int) -> list[str]:
    """The outcome as a small table, where there is room: what was announced beside what the model then reported."""
    rows = [("COMPACTED", "WHY", "ANNOUNCED", "MODEL REPORTED", "OFF BY")]
    rows += [
        (
            check.participant,
            "you asked" if check.trigger == "requested" else f"by itself ({check.trigger})",
            f"{check.announced_tokens:,}",
            f"{check.reported_tokens:,}",
            f"{abs(check.off_tokens):,} ({abs(check.off_tokens) / max(1, check.reported_tokens):.1%})",
        )
        for check in checks
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    table = ["", "tokens freed by each compaction:", *lines] if max(map(len, lines)) <= width else []
    return [*table, "", f"done in {seconds:.1f} s"]


def tell_kept(view: View, run: RunFile, folder: Path, *, as_json: bool) -> None:
    """Say how to go on with the space that was left running."""
    token = read_token(folder / ".mew", YOU, environ={}) or ""
    page = f"{run.gateway}/dashboard#token={token}&space={run.space}&participant={YOU}"
    if as_json:
        view.show({"event": "kept", "folder": str(folder), "gateway": run.gateway, "dashboard": page})
        return
    terminal.say(f"the space keeps running in {folder}")
    terminal.say(f"  see it     mew status --watch --space-dir {folder}")
    terminal.say(f"             {page}")
    terminal.say(f"  act on it  mew compact {BY_ITSELF} --space-dir {folder}")
    terminal.say(f"  stop it    mew down --space-dir {folder}")
