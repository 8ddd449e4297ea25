"""`mew` as a whole: it starts fast, and an error is one line and an exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mew_agent._version import __version__
from tests.support.cli import mew
from tests.support.warm_start import MEW

HEAVY = (
    "pydantic",
    "openai",
    "websockets",
    "starlette",
    "uvicorn",
    "rich",
    "anyio",
    "yaml",
    "asyncio",
    "mew_agent.agent.agent",
)


_BRIDGE = pytest.param("bridge", marks=pytest.mark.part("mcp"))
_CONTEXT = pytest.param("context", marks=pytest.mark.part("archive", "policies"))


@pytest.mark.part("archive", "demo")
async def test_help_lists_everyday_commands() -> None:
    outcome = await mew("--help")
    assert outcome.code == 0
    for command in ("init", "up", "down", "status", "compact", "undo", "cancel", "pause", "resume", "demo"):
        assert f"\n  {command} " in outcome.out
    for group in ("agent", "context", "serve"):
        assert f"\n  {group} " in outcome.out


@pytest.mark.parametrize("group", ["gateway", "agent", _BRIDGE, "serve", _CONTEXT])
async def test_command_lists_fit_80_columns(monkeypatch: pytest.MonkeyPatch, group: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = (await mew(group, "--help")).out.partition("Commands:\n")[2].splitlines()
    assert listed
    assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == []


async def test_mew_alone_shows_help_and_the_next_step(tmp_path: Path) -> None:
    help_text = (await mew("--help")).out.rstrip()
    for made, said in ((None, "`mew init`"), ("space.yaml", "`mew up`"), (".mew/run.json", "`mew` at a terminal")):
        if made is not None:
            (tmp_path / made).parent.mkdir(exist_ok=True)
            (tmp_path / made).touch()
        outcome = await mew()
        assert outcome.code == 0
        assert outcome.out.startswith(help_text)
        assert said in outcome.out.removeprefix(help_text)


@pytest.mark.parametrize(
    ("gateway", "said"),
    [(os.getpid(), "`mew` at a terminal"), (2**22 + 7, "`mew down` cleans up"), (None, "`mew` at a terminal")],
    ids=["alive", "dead", "unknown"],
)
async def test_next_step_after_a_killed_space_is_to_clean_up(tmp_path: Path, gateway: int | None, said: str) -> None:
    (tmp_path / ".mew").mkdir()
    (tmp_path / ".mew" / "run.json").write_text(json.dumps({"pids": {"gateway": gateway}}))
    assert said in (await mew()).out.splitlines()[-1]


@pytest.mark.parametrize("group", ["gateway", "agent", _CONTEXT])
async def test_group_alone_shows_its_help(group: str) -> None:
    outcome = await mew(group)
    assert outcome.code == 0
    assert outcome.out.startswith(f"Usage: mew {group}")


async def test_version_is_that_of_the_package() -> None:
    assert (await mew("--version")).out == f"mew {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cook",), "No such command 'cook'"),
        (("compact",), "Missing argument 'PARTICIPANT'"),
        (("compact", "a", "--target-tokens", "many"), "--target-tokens"),
        (("status", "--wacth"), "--wacth"),
        (("gateway", "start", "--port", "70000"), "65535"),
        (("up", "--log-level", "chatty"), "chatty"),
    ],
)
async def test_usage_error_is_one_line_that_points_to_help(arguments: tuple[str, ...], said: str) -> None:
    outcome = await mew(*arguments)
    assert outcome.err.startswith("mew: ")
    assert said in outcome.err
    assert "--help`)" in outcome.err
    assert outcome.err.count("\n") == 1
    assert (outcome.code, outcome.out) == (2, "")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, io, contextlib\n"
        "from mew_agent.cli.main import run\n"
        "with contextlib.redirect_stdout(io.StringIO()): code = run(['--help'])\n"
        f"print(code, [name for name in {HEAVY!r} if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "0 []\n"


@pytest.mark.parametrize(
    ("shell", "typed", "completed"),
    [
        ("bash", {"COMP_WORDS": "mew compact co", "COMP_CWORD": "2"}, "coder\n"),
        ("bash", {"COMP_WORDS": "mew status --participant a", "COMP_CWORD": "3"}, "ada\n"),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "mew compact co"}, """_arguments '*: :(("coder"))'\n"""),
        ("fish", {"_TYPER_COMPLETE_ARGS": "mew sta", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}, "status"),
    ],
)
def test_shell_completes_commands_and_participants(
    tmp_path: Path, shell: str, typed: dict[str, str], completed: str
) -> None:
    (tmp_path / "space.yaml").write_text("space: {id: s}\nparticipants: {ada: {}, coder: {}}\n")
    environment = {**os.environ, "_MEW_COMPLETE": f"complete_{shell}", **typed}
    shown = subprocess.run(MEW, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.startswith(completed), shown


@pytest.mark.skipif(sys.platform == "win32", reason="pipes close differently there")
@pytest.mark.parametrize(
    ("command", "code"),
    [("{mew} --help | true", 0), ("{mew} --version >&-", 0), ("{mew} cook 2>&-", 2)],
    ids=["closed pipe", "no output", "no error output"],
)
def test_closed_output_is_not_an_error(command: str, code: int) -> None:
    mew = f"{sys.executable} -m mew_agent"
    shown = subprocess.run(
        ["/bin/sh", "-c", command.format(mew=mew)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (shown.returncode, shown.stderr) == (code, "")


def test_closed_pipe_has_its_own_exit_code() -> None:
    code = (
        "import sys\n"
        "from mew_agent.cli.app.commands import COMMANDS\n"
        "from mew_agent.cli.app.groups import CommandEntry\n"
        "from mew_agent.cli.main import run\n"
        "def endless() -> None:\n"
        "    while True:\n"
        "        print('more', flush=True)\n"
        "COMMANDS['Watch']['endless'] = CommandEntry('.', '__main__:endless')\n"
        "sys.exit(run(['endless']))\n"
    )
    read_end, write_end = os.pipe()
    with subprocess.Popen([sys.executable, "-c", code], stdout=write_end, stderr=subprocess.PIPE, text=True) as child:
        os.close(write_end)
        os.read(read_end, 4)
        os.close(read_end)
        _, complaints = child.communicate(timeout=60)
    assert (child.returncode, complaints) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
def test_write_error_is_one_line() -> None:
    command = f"{sys.executable} -m mew_agent init --list-templates > /dev/full"
    shown = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stderr) == (1, "mew: No space left on device\n")


def test_package_runs_as_a_module() -> None:
    shown = subprocess.run(
        [sys.executable, "-P", "-m", "mew_agent", "--version"], capture_output=True, text=True, check=True
    )
    assert shown.stdout == f"mew {__version__}\n"


def test_interrupt_during_import_ends_quietly(tmp_path: Path) -> None:
    """Python ignores exceptions in a callback of a weak reference; its import system has one for each module."""
    (tmp_path / "typer.py").write_text(
        "import signal, weakref\n"
        "modules = set()\n"
        "reference = weakref.ref(modules, lambda _: signal.raise_signal(signal.SIGINT))\n"
        "del modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mew_agent"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_interrupt_inside_generated_code_keeps_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text(
        "import sys\n"
        "from mew_agent.__main__ import main\n"
        "from mew_agent.cli.app.commands import COMMANDS\n"
        "from mew_agent.cli.app.groups import CommandEntry\n"
        "def here() -> None:\n"
        "    exec('raise KeyboardInterrupt')\n"
        "COMMANDS['Watch']['here'] = CommandEntry('.', '__main__:here')\n"
        "sys.argv[1:] = ['here']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-m", "interrupted"], cwd=tmp_path, check=False, timeout=60)
    assert done.returncode == 130


async def test_an_argument_that_is_not_text_is_refused() -> None:
    outcome = await mew("chat", "coder", "gr\udcfc\udcdfe")
    assert outcome.err.startswith("mew: 'gr\\udcfc\\udcdfe': is not valid text in this shell's encoding")
    assert (outcome.code, outcome.out) == (2, "")
