"""`mew agent remove`: removes a participant from a space, without a restart if the space runs.

Owns the steps: remove the section of space.yaml, end the membership at the running gateway (`space/kick`), stop the
program, delete the token file. The conversation and the log stay.
"""

import time
from typing import Final

from mew_protocol import kinds
from mew_settings.private_files import replace_file
from mew_spaces.config.loading import parse_space, without_participant
from mew_spaces.gateway.auth import remove_token_file, state_dir, token_path
from mew_spaces.launch.run_file import read_run_file

from mew_agent.cli.app import terminal
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.locate import not_in_space, space_config_path
from mew_agent.cli.app.options import ReasonOption, SpaceFileOptions, TargetArgument
from mew_agent.cli.space.add import RunningSpace, running_space
from mew_agent.cli.space.restart import reload

_STOP_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 0.05


def remove(name: TargetArgument, place: SpaceFileOptions, reason: ReasonOption = None) -> int:
    """Remove a participant from the space.

    Takes it out of space.yaml, ends its membership and its token, and stops its program. No restart needed. Its stored
    conversation stays. For a guest, only ends its membership and token.
    """
    path = space_config_path(place.config, place.folder)
    text = path.read_text(encoding="utf-8")
    config = parse_space(text, path=path)
    running = running_space(path, config)
    is_guest = name not in config.participants
    if is_guest and (running is None or not running.has_member(name)):
        raise not_in_space("PARTICIPANT", name, config, path)
    changed = text if is_guest else without_participant(text, name, path=path)
    if running is not None:
        payload = {"participant_id": name, "reason": reason or "removed from the space"}
        running.access().send({"kind": kinds.SPACE_KICK, "payload": payload})
    if not is_guest:
        replace_file(path, changed)
    if (token := token_path(state_dir(path), name)).exists():
        remove_token_file(token)
    stopped = running is None or _stop_program(name, running)
    program = "" if stopped else "; its program has not ended yet"
    outcome = {"participant": name, "removed": True, "stopped": stopped}
    terminal.print_outcome(f"{name}: removed{program}", outcome)
    return ExitCode.DONE


def _stop_program(name: str, running: RunningSpace) -> bool:
    """Wait until a participant's program has ended, and make `mew up` forget it. Returns False if it still runs."""
    until = time.monotonic() + _STOP_SECONDS
    with terminal.ProgressLine() as progress:
        progress.show(f"{name}: waiting until its program has ended")
        while (run := read_run_file(running.run_path)) is not None and name in run.pids.participants:
            if name in run.exits or not run.is_running(run.pids.participants[name]):
                break
            if time.monotonic() >= until:
                return False
            time.sleep(_POLL_SECONDS)
    reload(running.run)
    return True
