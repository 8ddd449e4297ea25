"""`mew demo`: a complete space in one command: a gateway, two agents and a model, each in its own process.

Owns the demo's space, and its start and end, which use `mew up` and `mew down` as a user would. `story` has the plot,
`demo_view` the display.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, cycle
from pathlib import Path
from typing import Annotated

import anyio
import typer
from mew_spaces.gateway.auth import STATE_NAME, read_token
from mew_spaces.launch.run_file import RunFile, read_run_file, run_file_path
from pydantic_core import to_json

from mew_agent.cli.app import terminal
from mew_agent.cli.app.locate import OWN_COMMAND, dashboard_url, relative_to
from mew_agent.cli.app.options import OUTPUT, option
from mew_agent.cli.app.signals import interrupt_on_termination
from mew_agent.errors import ConfigError
from mew_agent.model.builtin import builtin_model
from mew_agent.participant.participant import Participant
from mew_agent.parts.demo.demo_view import Show, cause_of, shown
from mew_agent.parts.demo.story import CompactionCheck, DemoFailed, DemoStory, TextPart, split_text
from mew_agent.parts.shared.serve_model import LOCAL, REHEARSAL
from mew_agent.program import run_until_signal

BY_ITSELF, ON_REQUEST, YOU = "reader", "editor", "you"
CLONE = Path(__file__).parents[3]
"""The source folder, in an editable installation."""

WINDOW_TOKENS = 4096
LIMIT_SECONDS = 55.0
LOCAL_LIMIT_SECONDS = 1800.0
START_SECONDS = 70.0
"""Timeout of `mew up` and `mew down`. They have their own timeouts; this one is for a process that hangs."""

PACE_SECONDS = 0.6
"""Delay between two parts when a person watches."""

DEFAULT_REAL_MODEL = "gpt-4o-mini"


def demo(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="Text files to read (default: this project's docs).")
    ] = None,
    *,
    keep: Annotated[bool, option("--keep", "Keep the space running at the end.")] = False,
    local: Annotated[bool, option("--local", "Use a small real model on this machine; takes minutes.")] = False,
) -> None:
    """Watch two agents fill up and compact; needs no key.

    Takes less than a minute. With OPENAI_API_KEY or OPENAI_BASE_URL set, it uses that model instead of the rehearsal
    model. With --json, prints one event per line.
    """
    if local:
        _check_local_model()
    readings = [read_text_file(path) for path in files or default_files()]
    agents = [BY_ITSELF, ON_REQUEST]
    started = time.monotonic()
    with interrupt_on_termination(), running_space(keep=keep, local=local) as (run, folder, model):
        with shown((BY_ITSELF, ON_REQUEST)) as show:
            files_read = [parts[0].source for parts in readings]
            show({"event": "started", "model": model, "agents": agents, "files": files_read, "gateway": run.gateway})
            pace_seconds = PACE_SECONDS if terminal.is_terminal(sys.stdout) and not OUTPUT.is_json else 0.0
            limit_seconds = LOCAL_LIMIT_SECONDS if local else LIMIT_SECONDS
            checks = run_until_signal(play, run, folder, readings, show, pace_seconds, limit_seconds) or []
            seconds = time.monotonic() - started
            outcome = [check.as_event() for check in checks]
            show({"event": "summary", "seconds": round(seconds, 1), "checks": outcome})
        if not OUTPUT.is_json:
            terminal.print_lines(summary_lines(checks, seconds, width=terminal.style_of(sys.stdout).width))
        if keep:
            print_kept(run, folder)
        elif not OUTPUT.is_json:
            terminal.print_lines(next_steps(terminal.own_command()))


def _check_local_model() -> None:
    real = builtin_model(LOCAL)
    if real is None:
        raise ConfigError("--local", "the part 'local' of mew-agent is not installed")
    real.serves(LOCAL, where="--local")


async def play(
    run: RunFile,
    folder: Path,
    readings: list[list[TextPart]],
    show: Show,
    pace_seconds: float,
    limit_seconds: float = LIMIT_SECONDS,
) -> list[CompactionCheck]:
    """Join the running space as its person and play the story. Raises `DemoFailed` on timeout."""
    token = read_token(folder / STATE_NAME, YOU, environ={}) or ""
    with anyio.move_on_after(limit_seconds):
        async with Participant(run.ws, space=run.space, id=YOU, token=token, reports_context=False) as me:
            story = DemoStory(me, by_itself=BY_ITSELF, on_request=ON_REQUEST, show=show, pace_seconds=pace_seconds)
            story.answer_timeout_seconds = max(story.answer_timeout_seconds, limit_seconds / 4)
            return await story.play(parts_by_agent(readings))
    raise DemoFailed(f"the demo did not end within {limit_seconds:g} seconds; the model may be too slow")


def parts_by_agent(readings: list[list[TextPart]]) -> dict[str, Iterator[TextPart]]:
    """Return all texts for each agent, repeated to fill a window; the second agent starts with another text."""
    others_first = [*readings[1:], *readings[:1]]
    return {BY_ITSELF: cycle(chain(*readings)), ON_REQUEST: cycle(chain(*others_first))}


# -- the texts -----------------------------------------------------------------------------------------------


def default_files() -> list[Path]:
    """Return the project's documentation, next to the sources or in the installed package."""
    for folder in (CLONE / "docs" / "explanation", Path(__file__).parents[2] / "_docs"):
        found = sorted(folder.glob("*.md"))
        if found:
            return found
    raise ConfigError("mew demo", "the project's documentation is not installed", "one or more text files")


def read_text_file(path: Path) -> list[TextPart]:
    """Read a text file and cut it into parts. Raises `ConfigError` with the file and the problem."""
    parts = split_text(path, terminal.read_text(path, "FILE"))
    if not parts:
        raise ConfigError(str(path), "is empty", "a text file")
    return parts


# -- the space -----------------------------------------------------------------------------------------------


def write_space(folder: Path, environ: Mapping[str, str], *, local: bool = False) -> str:
    """Write the demo's space.yaml. Returns a description of its model."""
    server = {"model": REHEARSAL, "base_url": REHEARSAL}
    words = f"the rehearsal model (canned replies, no real model; window {WINDOW_TOKENS:,} tokens)"
    if local:
        server = {"model": LOCAL, "base_url": LOCAL}
        words = f"a small real model on this machine (window {WINDOW_TOKENS:,} tokens)"
    elif environ.get("OPENAI_API_KEY") or environ.get("OPENAI_BASE_URL"):
        server = {"model": environ.get("OPENAI_MODEL") or DEFAULT_REAL_MODEL}
        words = f"{server['model']} (window limited to {WINDOW_TOKENS:,} tokens)"
    # A short question after a compaction at the threshold checks a figure, so no earlier compaction may run.
    agent = {**server, "context_token_limit": WINDOW_TOKENS}
    section = {"agent": agent, "auto_start": True}
    space = {
        "space": {"id": "demo", "name": "mew demo", "default_participant": YOU},
        "participants": {YOU: {"capabilities": [{"kind": "*"}]}, BY_ITSELF: section, ON_REQUEST: section},
    }
    # JSON is YAML, so no YAML writer is needed.
    (folder / "space.yaml").write_bytes(to_json(space, indent=2))
    return words


@contextmanager
def running_space(*, keep: bool, local: bool = False) -> Iterator[tuple[RunFile, Path, str]]:
    """Run `mew up`, and afterwards `mew down` unless kept. Yields the run file, the folder, and a description of the
    model.
    """
    kept = False
    folder = Path(tempfile.mkdtemp(prefix="mew-demo-"))
    try:
        model = write_space(folder, os.environ, local=local)
        run_mew("up", "--detach", "--space-dir", str(folder), "--port", "0")
        run = read_run_file(run_file_path(folder / STATE_NAME))
        if run is None:
            raise DemoFailed("`mew up` left no run file")
        yield run, folder, model
        kept = keep
    finally:
        if not kept:
            handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would leave programs running
            run_mew("down", "--space-dir", str(folder), check=False)
            shutil.rmtree(folder, ignore_errors=True)
            signal.signal(signal.SIGINT, handler)


def run_mew(*arguments: str, check: bool = True) -> None:
    """Run one of our own commands as a user would. Raises `DemoFailed` with its output."""
    command = [*OWN_COMMAND, *arguments]
    pipe = subprocess.PIPE
    # In its own session, it does not receive the terminal's Ctrl-C.
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as child:  # noqa: S603
        try:
            output, errors = child.communicate(timeout=START_SECONDS)
        except BaseException as error:
            child.terminate()  # lets it clean up first
            child.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise DemoFailed(f"`mew {arguments[0]}` did not end within {START_SECONDS:g} seconds") from None
            raise
    if check and child.returncode:
        raise DemoFailed((errors or output).strip().removeprefix("mew: "))


# -- the end -------------------------------------------------------------------------------------------------


def summary_lines(checks: list[CompactionCheck], seconds: float, *, width: int) -> list[str]:
    """Return the outcome, as a table if it fits: the tokens freed, and the expected and reported next size."""
    rows = [("COMPACTED", "WHY", "FREED", "EXPECTED", "REPORTED", "OFF BY")]
    rows += [
        (
            check.participant,
            cause_of(check.trigger),
            f"{check.freed_tokens:,}",
            f"{check.expected_tokens:,}",
            f"{check.reported_tokens:,}",
            check.off,
        )
        for check in checks
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    table = (
        ["", "tokens freed, and the next size with an estimated question:", *lines]
        if max(map(len, lines)) <= width
        else []
    )
    return [*table, "", f"done in {seconds:.1f} s"]


def _how_to_learn_more() -> tuple[str, str]:
    tutorial = CLONE / "docs" / "tutorial" / "getting-started.md"
    if tutorial.is_file():
        return relative_to(Path.cwd(), tutorial), "learn the rest in ten minutes"
    return "mew help all", "list every command"  # an installed package has no tutorial


def next_steps(mew: str) -> list[str]:
    """Return commands to try after the demo; `mew` is the typed name of the command."""
    steps = [
        ("mew demo --keep", "keep the agents running, and print how to watch them"),
        ("mew init --model rehearsal && mew up -i", "start a space of your own, in an empty folder"),
        _how_to_learn_more(),
    ]
    if mew != "mew":
        steps.insert(0, (f'export PATH="{Path(mew).absolute().parent}:$PATH"', "let the shell find mew"))
    width = max(len(what) for what, _ in steps)
    return ["try next:", *(f"  {what:<{width}}  {why}" for what, why in steps)]


def print_kept(run: RunFile, folder: Path) -> None:
    """Print the next commands for the space that keeps running."""
    token = read_token(folder / STATE_NAME, YOU, environ={}) or ""
    page = dashboard_url(run.gateway, run.space, YOU, token)
    mew = terminal.own_command()
    if OUTPUT.is_json:
        terminal.print_json({"event": "kept", "folder": str(folder), "gateway": run.gateway, "dashboard": page})
        return
    terminal.print_line(f"the space keeps running in {folder}")
    terminal.print_line(f"  watch it   {mew} status --watch --space-dir {folder}")
    terminal.print_line(f"             {page}")
    terminal.print_line(f"  act on it  {mew} compact {BY_ITSELF} --space-dir {folder}")
    terminal.print_line(f"  stop it    {mew} down --space-dir {folder}")
