"""`mew up`: starts a whole space from its space.yaml.

Prints the progress, and ends the space on a signal. `plan` selects the programs; `mew_spaces.launch.supervisor`
supervises the programs.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import IO, Annotated, Any, Final, cast

import anyio
import anyio.to_thread
from mew_board.quoting import clean
from mew_spaces.config.loading import load_space
from mew_spaces.errors import SpacesError
from mew_spaces.launch.launch import GATEWAY, MODEL, Program
from mew_spaces.launch.program_logs import last_line, log_path, prepare_log_folder
from mew_spaces.launch.run_file import RunFile, claim_run_file, pop_restart_requests, read_run_file, remove_run_file
from mew_spaces.launch.supervisor import SELF, Supervisor, stop_space

from mew_agent.cli.app import terminal
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.locate import OWN_COMMAND, default_hint, relative_to
from mew_agent.cli.app.options import OUTPUT, ConnectionOptions, option
from mew_agent.cli.app.signals import interrupt_on_termination
from mew_agent.cli.space.agent_type import AGENT_KEY
from mew_agent.cli.space.plan import LaunchPlan, StartOptions, add_new_participants, make_launch_plan
from mew_agent.errors import ConfigError, MewAgentError, NotConnected, Unauthorized
from mew_agent.program import run_until_signal

READY_SECONDS: Final = 40.0
"""Timeout for a space in the background to start all its programs."""

JOIN_SECONDS: Final = 30.0
"""How long to wait for participants to join. A slower one is reported as not joined yet, not as a failure."""

NOTE_SECONDS: Final = 2.0
"""How long to wait for the supervisor to record why a program ended."""

RELOAD_SIGNAL: Final = signal.SIGUSR1 if sys.platform != "win32" else signal.SIGTERM
"""Makes the process of `mew up` start the participants that were added to space.yaml."""

_HOW_STOPPED: Final = {
    "SIGINT": "was stopped with Ctrl-C",
    "SIGTERM": "was stopped by `mew down` or a signal",
    "SIGHUP": "was stopped when its terminal was closed",
}

_POLL_SECONDS: Final = 0.1
_CHECK_SECONDS: Final = 1.0
_COLOURS: Final = ("36", "35", "33", "32", "34", "31")


def up(
    start: StartOptions,
    *,
    detach: Annotated[bool, option("--detach", "Run in the background.")] = False,
    plain: Annotated[bool, option("--debug, --simple, --no-ui", hidden=True)] = False,  # scripts of the TypeScript CLI
    plan_from_stdin: Annotated[bool, option("--plan-from-stdin", hidden=True)] = False,
) -> int:
    """Start a space: its gateway and its participants.

    Starts every participant with `auto_start`; Ctrl-C stops them all. An agent whose `base_url` names a built-in model
    needs no provider. --json requires --detach.
    """
    if sys.platform == "win32":
        raise ConfigError("mew up", "needs a POSIX system; run `mew gateway start` and `mew agent run` by hand")
    if plan_from_stdin:
        return start_here(LaunchPlan.from_json(sys.stdin.buffer.read()), is_background=True)
    if OUTPUT.is_json and not detach:
        raise ConfigError("--json", "requires --detach")
    if start.participant is not None and not start.joins:
        raise ConfigError("--participant", "requires --interactive")
    del plain  # the terminal of `--interactive` is always plain
    plan = make_launch_plan(start)
    for notice in plan.notices:
        terminal.warn(notice)
    if not start.joins:
        return start_detached(plan) if detach else start_here(plan)
    start_detached(plan)
    try:
        connection = ConnectionOptions(participant=start.participant, folder=plan.launch.folder)
        terminal.join_space(connection, plan.launch.config)
    finally:  # also after Ctrl-C
        terminal.print_line("the space keeps running; `mew down` stops it")
    return ExitCode.DONE


def start_here(plan: LaunchPlan, *, is_background: bool = False) -> int:
    """Run a space in this process until Ctrl-C or SIGTERM. In the background it prints only errors."""
    run = plan.run_file()
    supervisor = Supervisor(plan.run_path, run, plan.logs, is_refused=_is_refused, log_links=plan.log_links)
    if is_background:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)  # the plan was read from standard input; nothing else may read it
        os.close(nothing)
    else:
        supervisor.on_output = _Printer([SELF, *(program.name for program in plan.launch.participants())])
        supervisor.on_ready = lambda: _print_started(plan)
    with interrupt_on_termination():
        try:
            claim_run_file(plan.run_path, run)
            code = run_until_signal(_supervise, supervisor, plan) or ExitCode.DONE
        except KeyboardInterrupt:  # before it handled signals itself, or after all programs have ended
            claimed = read_run_file(plan.run_path)
            if claimed is not None and claimed.run_id == run.run_id:  # otherwise another start owns the file
                remove_run_file(plan.run_path)
            raise
    if not is_background:
        terminal.print_line(f"{plan.space}: stopped")
    return code


def _is_refused(program: Program) -> bool:
    """Return True if the gateway refuses the token of a program, for example of a removed participant."""
    from mew_agent.cli.remote.http_api import GatewayApi  # rarely needed by a space in the background

    environment = program.environment
    api = GatewayApi(
        environment["MEW_GATEWAY"],
        space=environment["MEW_SPACE"],
        participant=program.name,
        token=environment["MEW_TOKEN"],
    )
    try:
        api.board()
    except MewAgentError as error:
        return isinstance(error, Unauthorized)
    return False


def start_detached(plan: LaunchPlan) -> int:
    """Start a space in a background process, wait until all have joined, and print its address."""
    prepare_log_folder(plan.logs, [SELF])
    own_log = log_path(plan.logs, SELF)
    with interrupt_on_termination():
        with own_log.open("ab") as log:
            child = subprocess.Popen(  # noqa: S603 - our own program
                (*OWN_COMMAND, "up", "--plan-from-stdin"),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=plan.launch.folder,
                start_new_session=True,
            )
        try:
            # A child that ends early breaks the pipe; `_wait_ready` reports why.
            with suppress(BrokenPipeError), cast("IO[bytes]", child.stdin) as pipe:
                pipe.write(plan.to_json())  # tokens included: no other program can read a pipe
            with terminal.ProgressLine() as progress:
                _wait_ready(child, plan, own_log, progress)
                joined = _wait_joined(plan, progress)
            faults = _recorded_faults(plan.run_path)
        except KeyboardInterrupt:
            child.terminate()
            child.wait()
            run = read_run_file(plan.run_path)
            if run is not None and run.pids.supervisor == child.pid:
                stop_space(plan.run_path, run)
            terminal.print_line(f"{plan.space}: stopped")
            raise
    if OUTPUT.is_json:
        terminal.print_json(_summary(plan, joined, faults))
    else:
        _print_summary(plan, joined, faults)
    child.returncode = 0  # it outlives this process, so do not wait for it
    return ExitCode.FAILED if faults else ExitCode.DONE


async def _supervise(supervisor: Supervisor, plan: LaunchPlan) -> int:
    """Serve until a signal arrives. A second signal kills the remaining programs."""
    received: list[signal.Signals] = []
    newest = plan

    async def handle(signals: Any) -> None:
        nonlocal newest
        async for number in signals:
            if number == RELOAD_SIGNAL:
                newest = await _start_new_participants(supervisor, newest)
                continue
            if received:
                supervisor.force()
            elif supervisor.on_output is not None:
                supervisor.on_output(SELF, "stopping; press Ctrl-C again to force quit")
            received.append(number)
            supervisor.stop(_HOW_STOPPED.get(number.name, "was stopped"))

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, RELOAD_SIGNAL) as signals:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(handle, signals)
            tasks.start_soon(_forget_removed, supervisor, plan.launch.config_path)
            await supervisor.serve(plan.services(), plan.launch.participants())
            tasks.cancel_scope.cancel()
    return ExitCode.INTERRUPTED if signal.SIGINT in received else ExitCode.DONE


async def _forget_removed(supervisor: Supervisor, path: Path) -> None:
    """Forget ended programs of participants that left space.yaml, until cancelled."""
    changed_at, names = 0, frozenset[str]()
    while True:
        await anyio.sleep(_CHECK_SECONDS)
        with suppress(OSError, SpacesError):  # a mistake in the file: wait for its next change
            if (newest := (await anyio.Path(path).stat()).st_mtime_ns) != changed_at:
                names = frozenset((await anyio.to_thread.run_sync(load_space, path)).participants)
                changed_at = newest
            for name in supervisor.run.exits.keys() - names:
                supervisor.forget(name)


async def _start_new_participants(supervisor: Supervisor, plan: LaunchPlan) -> LaunchPlan:
    """Start participants added to space.yaml, and restart participants for `mew restart`.

    An error in the file is printed and changes nothing.
    """
    try:
        newest, programs = add_new_participants(plan, again=pop_restart_requests(plan.run_path))
    except (MewAgentError, SpacesError) as error:
        terminal.warn(str(error))
        return plan
    for program in programs:
        await supervisor.add(program)
    return newest


def _wait_ready(
    child: "subprocess.Popen[bytes]", plan: LaunchPlan, own_log: Path, progress: terminal.ProgressLine
) -> RunFile:
    """Wait until the supervisor has started everything. If it ends instead, raises with the last line of its log."""
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until:
        run = read_run_file(plan.run_path)
        if run is not None and run.ready and run.pids.supervisor == child.pid:
            return run
        if child.poll() is not None:
            raise ConfigError(plan.space, f"did not start: {_last_words(own_log)}")
        is_loading = plan.served is not None and plan.served.model.loads_slowly
        doing = f"loading {plan.served.what}" if plan.served is not None and is_loading else "starting the gateway"
        progress.show(f"{plan.space}: {doing}")
        time.sleep(_POLL_SECONDS)
    child.send_signal(signal.SIGTERM)
    child.wait()
    raise ConfigError(plan.space, f"did not start within {READY_SECONDS:g} seconds; see {plan.logs}")


def _wait_joined(plan: LaunchPlan, progress: terminal.ProgressLine) -> set[str]:
    """Wait for the started participants, and return those that have joined. Stops early if the others have ended."""
    from mew_agent.cli.remote.http_api import GatewayApi

    expected = {program.name for program in plan.launch.participants()}
    reader = plan.person or next(iter(plan.launch.tokens), "")
    token = plan.launch.tokens.get(reader, "")
    api = GatewayApi(plan.launch.address.http, space=plan.space, participant=reader, token=token)
    joined: set[str] = set()
    until = time.monotonic() + JOIN_SECONDS
    while expected and time.monotonic() < until:
        run = read_run_file(plan.run_path)
        ended = _ended(run) if run is not None else expected
        try:
            entries = api.board().participants
        except NotConnected:
            break
        joined |= {entry.id for entry in entries if entry.connected} & expected
        if joined | ended >= expected:
            break
        missing = ", ".join(sorted(expected - joined - ended))
        progress.show(f"{plan.space}: {len(joined)} of {len(expected)} joined, waiting for {missing}")
        time.sleep(_POLL_SECONDS)
    return joined


def _ended(run: RunFile) -> set[str]:
    """Return the participants that have ended. While a supervisor runs, only ends that it recorded count."""
    return set(run.exits if run.is_running(run.pids.supervisor) else run.ended())


def _recorded_faults(path: Path) -> dict[str, str]:
    """Return why programs ended at the start, even with code 0. Waits for the supervisor's records."""
    until = time.monotonic() + NOTE_SECONDS
    while (run := read_run_file(path)) is not None:
        faults = run.ended()
        if set(faults) == _ended(run) or time.monotonic() >= until:
            return faults
        time.sleep(_POLL_SECONDS)
    return {}


def _summary(plan: LaunchPlan, joined: set[str], faults: Mapping[str, str]) -> dict[str, Any]:
    names = [program.name for program in plan.launch.participants()]
    programs = {name: {"joined": name in joined, "fault": faults.get(name)} for name in names}
    where = {"gateway": plan.launch.address.http, "dashboard": plan.dashboards()[0][1], "logs": str(plan.logs)}
    return {"space": plan.space, **where, "programs": programs}


def _print_summary(plan: LaunchPlan, joined: set[str], faults: Mapping[str, str]) -> None:
    here = Path.cwd()
    terminal.print_line(f"{plan.space} is running in the background at {plan.launch.address.http}")
    if plan.served is not None:
        on_machine = f"its agents use a model on this machine: {plan.served.what}"
        terminal.print_line(f"  {plan.served.model.notice or on_machine}")
    for program in plan.launch.participants():
        if program.name in faults:
            state = f"{faults[program.name]} (see {relative_to(here, log_path(plan.logs, program.name))})"
        else:
            state = "joined" if program.name in joined else "started, has not joined yet"
        terminal.print_line(f"  {program.name}: {state}")
    terminal.print_lines([*_not_started(plan), *_next_steps(plan, is_background=True)])


def _print_started(plan: LaunchPlan) -> None:
    names = ", ".join(program.name for program in plan.launch.participants()) or "no participants"
    terminal.print_line(
        f"{plan.space} is running at {plan.launch.address.http} ({names} started); Ctrl-C stops everything"
    )
    terminal.print_lines([*_not_started(plan), *_next_steps(plan, is_background=False)])


def _not_started(plan: LaunchPlan) -> list[str]:
    """Return a line for each participant with a program that does not start with its space."""
    return [
        f"  {name}: not started, because space.yaml does not give it `auto_start: true`"
        for name, one in plan.launch.config.participants.items()
        if one.has_program and not one.auto_start
    ]


def _next_steps(plan: LaunchPlan, *, is_background: bool) -> list[str]:
    """Return the addresses of the dashboard, and three commands to try next."""
    lines = _addresses(plan, is_background=is_background)
    if OUTPUT.is_quiet:
        return lines
    steps = _commands(plan, is_background=is_background)
    width = max(len(command) for command, _ in steps)
    heading = "next:" if is_background else "next, in another terminal:"
    return [*lines, heading, *(f"  {command:<{width}}  {purpose}" for command, purpose in steps)]


def _addresses(plan: LaunchPlan, *, is_background: bool) -> list[str]:
    """Return the addresses of the dashboard, and how to select a person if there are several."""
    people, pages = plan.people, plan.dashboards()
    if not is_background and not sys.stdout.isatty():
        # A service manager or container engine stores this output, and a person's address contains a token.
        pages = [(name, url.partition("#")[0]) for name, url in pages[:1]]
    lines = [f"dashboard{f' of {name}' if len(pages) > 1 else ''}: {url}" for name, url in pages]
    if len(people) > 1:
        lines.append(f"{len(people)} people here: add --participant ID to commands, or {default_hint(people[0])}")
    return lines


def _commands(plan: LaunchPlan, *, is_background: bool) -> list[tuple[str, str]]:
    """Three commands to type next, each with its purpose."""
    people = plan.people
    place = (
        ""
        if Path.cwd().is_relative_to(plan.launch.folder.resolve())
        else f" --space-dir {quote(str(plan.launch.folder))}"
    )
    who = f" --participant {people[0]}" if plan.person is None and people else ""
    started = {program.name for program in plan.launch.participants()}
    participants = plan.launch.config.participants
    agents = [name for name, one in participants.items() if one.type_key == AGENT_KEY and name in started]
    mew = terminal.own_command()
    first = (f"{mew} logs{place} --follow", "read what the programs write")
    if agents and people:
        first = (f'{mew} chat{place}{who} {agents[0]} "Hello."', f"talk to {agents[0]}")
    last = (f"{mew} status{place}{who} --watch", "see how full each context window is")
    if is_background or not people:
        last = (f"{mew} down{place}", "stop the space")
    return [first, (f"{mew} dashboard{place} --open", "see the space in a browser"), last]


def _last_words(log: Path) -> str:
    return clean(last_line(log)).removeprefix("mew: ") or f"its log is empty (see {log})"


class _Printer:
    """Prints the output of programs; each line begins with its program's name."""

    def __init__(self, names: list[str]) -> None:
        self._width = max(len(name) for name in (*names, GATEWAY))
        self._colour = terminal.style_of(sys.stdout).colour
        self._codes: dict[str, str] = {}

    def __call__(self, name: str, line: str) -> None:
        shown = {MODEL: "model"}.get(name, name).ljust(self._width)
        if self._colour:
            code = self._codes.setdefault(name, _COLOURS[len(self._codes) % len(_COLOURS)])
            shown = f"\x1b[{code}m{shown}\x1b[0m"
        terminal.print_lines([f"{shown} | {clean(line)}"])
