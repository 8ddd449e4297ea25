"""Starting a space, in the foreground or the background, and telling where it is.

Owns what is printed meanwhile and the signals that end it. What is started is settled by `plan`; how programs are
watched is `mew_spaces.launch.supervisor`.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import anyio
from mew_spaces.errors import SpacesError
from mew_spaces.launch.launch import GATEWAY, MODEL
from mew_spaces.launch.program_logs import log_path, prepare_log_folder
from mew_spaces.launch.run_file import RunFile, claim_run_file, read_run_file, run_file_path
from mew_spaces.launch.supervisor import SELF, ProgramFailed, Supervisor, stop_space

from mew_agent.cli.app import terminal
from mew_agent.cli.app.signals import asked_like_ctrl_c
from mew_agent.cli.board.words import clean
from mew_agent.cli.remote.http_api import GatewayApi
from mew_agent.cli.space.plan import MEW, Plan, Request, make_plan, newcomers
from mew_agent.errors import ConfigError, MewAgentError, NotConnected

READY_SECONDS: Final = 40.0
"""How long a space in the background may take until everything was started."""

JOIN_SECONDS: Final = 15.0
"""How long its participants may take to join; a slower one is told as such, not as a failure."""

NOTE_SECONDS: Final = 2.0
"""How long the supervisor may take to note how a program ended that is gone already."""

LOOK_AGAIN: Final = signal.SIGUSR1 if sys.platform != "win32" else signal.SIGTERM
"""Tells the process of `mew up` that its space.yaml has a new participant."""

_POLL_SECONDS: Final = 0.03
_COLOURS: Final = ("36", "35", "33", "32", "34", "31")


def start_here(request: Request, *, background: bool = False) -> int:
    """Run a space in this process until Ctrl-C or SIGTERM. In the background only what goes wrong is printed."""
    if sys.platform == "win32":
        raise ConfigError("mew up", "needs a POSIX system; run `mew gateway start` and `mew agent run` by hand")
    plan = make_plan(request)
    path, run = run_file_path(plan.state), plan.run_file()
    supervisor = Supervisor(path, run, plan.logs)
    if not background:
        _print_notices(plan)
        supervisor.on_output = _Printer([SELF, *(program.name for program in plan.launch.participants())])
        supervisor.on_ready = lambda: _announce(plan)
    with asked_like_ctrl_c():
        claim_run_file(path, run)
        try:
            code = anyio.run(_supervise, supervisor, plan)
        except KeyboardInterrupt:  # it came before anything was started, or when all had ended
            path.unlink(missing_ok=True)
            raise
    if not background:
        terminal.say(f"{plan.space}: stopped")
    return code


def start_detached(request: Request) -> int:
    """Start a space in a process of its own, wait until its participants have joined, and say where it is.

    Interrupted before it has said so, it stops the space again.
    """
    if sys.platform == "win32":
        raise ConfigError("mew up", "needs a POSIX system; run `mew gateway start` and `mew agent run` by hand")
    plan = make_plan(request)
    _print_notices(plan)
    prepare_log_folder(plan.logs, [SELF])
    own_log = log_path(plan.logs, SELF)
    command = (
        *MEW, "up", "--background", "--config", str(plan.launch.config_path), "--host", request.host,
        "--port", str(plan.launch.address.port), "--log-level", request.log_level,
    )  # fmt: skip
    with asked_like_ctrl_c():
        with own_log.open("ab") as log:
            child = subprocess.Popen(  # noqa: S603 - our own program
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=plan.launch.folder,
                start_new_session=True,
            )
        try:
            _wait_ready(child, plan, own_log)
            joined = _wait_joined(plan)
            faults = _noted_faults(run_file_path(plan.state))
        except KeyboardInterrupt:
            _stop_again(child, plan)
            raise
    _summarise(plan, joined, faults)
    child.returncode = 0  # it goes on without us; nobody here collects it
    return terminal.FAILED if faults else terminal.DONE


async def _supervise(supervisor: Supervisor, plan: Plan) -> int:
    """Serve until a signal. A second signal forces the end."""
    received: list[signal.Signals] = []
    failure: ProgramFailed | None = None
    newest = plan

    async def heed(signals: Any) -> None:
        nonlocal newest
        async for number in signals:
            if number == LOOK_AGAIN:
                newest = await _start_newcomers(supervisor, newest)
                continue
            if received:
                supervisor.force()
            elif supervisor.on_output is not None:
                supervisor.on_output(SELF, "stopping; Ctrl-C once more does not wait for anybody")
            received.append(number)
            supervisor.stop()

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, LOOK_AGAIN) as signals:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(heed, signals)
            try:
                await supervisor.serve(plan.services(), plan.launch.participants())
            except ProgramFailed as error:
                failure = error
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return terminal.INTERRUPTED if signal.SIGINT in received else terminal.DONE


async def _start_newcomers(supervisor: Supervisor, plan: Plan) -> Plan:
    """Start who was added to the space's file. What is wrong there is told and changes nothing."""
    try:
        newest, programs = newcomers(plan)
    except (MewAgentError, SpacesError) as error:
        terminal.warn(str(error))
        return plan
    for program in programs:
        await supervisor.add(program)
    return newest


def _wait_ready(child: "subprocess.Popen[bytes]", plan: Plan, own_log: Path) -> RunFile:
    """Until the supervisor says that everything was started. Raises with its own words when it ends instead."""
    path = run_file_path(plan.state)
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until:
        run = read_run_file(path)
        if run is not None and run.ready and run.pids.supervisor == child.pid:
            return run
        if child.poll() is not None:
            raise ConfigError(plan.space, f"did not start: {_last_words(own_log)}")
        time.sleep(_POLL_SECONDS)
    child.send_signal(signal.SIGTERM)
    child.wait()
    raise ConfigError(plan.space, f"did not start within {READY_SECONDS:g} seconds; see {plan.logs}")


def _stop_again(child: "subprocess.Popen[bytes]", plan: Plan) -> None:
    """End the process of a space and all that it has started."""
    child.terminate()
    child.wait()
    path = run_file_path(plan.state)
    run = read_run_file(path)
    if run is not None and run.pids.supervisor == child.pid:
        stop_space(path, run)
    terminal.say(f"{plan.space}: stopped")


def _wait_joined(plan: Plan) -> set[str]:
    """The started participants that have joined. Returns early when the others have ended."""
    expected = {program.name for program in plan.launch.participants()}
    path = run_file_path(plan.state)
    someone = plan.person or next(iter(plan.launch.tokens), "")
    api = GatewayApi(
        plan.launch.address.http, space=plan.space, participant=someone, token=plan.launch.tokens.get(someone, "")
    )
    joined: set[str] = set()
    until = time.monotonic() + JOIN_SECONDS
    while expected and time.monotonic() < until:
        run = read_run_file(path)
        ended = _ended(run) if run is not None else expected
        try:
            entries = api.board()["participants"]
        except NotConnected:
            break
        joined |= {entry["id"] for entry in entries if entry["connected"]} & expected
        if joined | ended >= expected:
            break
        time.sleep(_POLL_SECONDS)
    return joined


def _ended(run: RunFile) -> set[str]:
    """Who has ended. While a supervisor lives it notes each end with its reason; until then nobody has ended."""
    return set(run.exits if run.is_running(run.pids.supervisor) else run.faults())


def _noted_faults(path: Path) -> dict[str, str]:
    """What is wrong with the programs, with the reasons that the supervisor is still about to note."""
    until = time.monotonic() + NOTE_SECONDS
    while (run := read_run_file(path)) is not None:
        faults = run.faults()
        if set(faults) == _ended(run) or time.monotonic() >= until:
            return faults
        time.sleep(_POLL_SECONDS)
    return {}


def _summarise(plan: Plan, joined: set[str], faults: Mapping[str, str]) -> None:
    terminal.say(f"{plan.space} runs in the background at {plan.launch.address.http}")
    if plan.model_port:
        terminal.say("  its agents use the rehearsal model, which quotes and does not think")
    for program in plan.launch.participants():
        if program.name in faults:
            state = f"{faults[program.name]} (see {_near(log_path(plan.logs, program.name))})"
        else:
            state = "joined" if program.name in joined else "started, has not joined yet"
        terminal.say(f"  {program.name}: {state}")
    terminal.say(f"dashboard: {plan.dashboard()}")
    terminal.say(f"logs:      {_near(plan.logs)}")
    terminal.say("next:      " + " · ".join(_next_commands(plan)))


def _announce(plan: Plan) -> None:
    names = ", ".join(program.name for program in plan.launch.participants()) or "no participants"
    terminal.say(f"{plan.space} runs at {plan.launch.address.http} ({names} started); Ctrl-C stops everything")
    terminal.say(f"dashboard: {plan.dashboard()}")


def _next_commands(plan: Plan) -> Iterable[str]:
    agents = [name for name, one in plan.launch.config.participants.items() if one.agent is not None]
    yield "mew status --watch"
    yield f"mew compact {agents[0]}" if agents else "mew status --json"
    yield "mew down"


def _print_notices(plan: Plan) -> None:
    for notice in plan.notices:
        terminal.warn(notice)


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return clean(lines[-1]).removeprefix("mew: ") if lines else f"it said nothing (see {log})"


def _near(path: Path) -> str:
    """A path as one would type it here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


class _Printer:
    """Prints what programs say, each line after its program's name."""

    def __init__(self, names: list[str]) -> None:
        self._width = max(len(name) for name in (*names, GATEWAY))
        self._colour = terminal.look(sys.stdout).colour
        self._codes: dict[str, str] = {}

    def __call__(self, name: str, line: str) -> None:
        shown = {MODEL: "model"}.get(name, name).ljust(self._width)
        if self._colour:
            code = self._codes.setdefault(name, _COLOURS[len(self._codes) % len(_COLOURS)])
            shown = f"\x1b[{code}m{shown}\x1b[0m"
        terminal.say_lines([f"{shown} | {clean(line)}"])
