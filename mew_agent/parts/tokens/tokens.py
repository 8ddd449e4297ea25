"""`mew token`: creates, lists, replaces and revokes the secrets that identify participants and observers to a space.

A running gateway follows the token files, so every command takes effect without a restart. Does not check tokens; see
`mew_spaces.gateway.auth`.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final, Literal

from mew_protocol.ids import id_problem, typed_id_problem
from mew_spaces.config.loading import SpaceConfig, load_space
from mew_spaces.errors import TokenError
from mew_spaces.gateway.auth import (
    ensure_token,
    observer_path,
    read_token_file,
    remove_token_file,
    state_dir,
    token_path,
    token_variable,
    write_new_token,
)

from mew_agent.cli.app import terminal
from mew_agent.cli.app.capabilities import read_capabilities, warn_of_unknown_kinds
from mew_agent.cli.app.locate import not_in_space, space_config_path
from mew_agent.cli.app.options import OUTPUT, SpaceFileOptions, option, participant_argument
from mew_agent.cli.space.add import running_space
from mew_agent.errors import ConfigError

_SECONDS: Final[Mapping[str, int]] = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
TokenFormat = Literal["text", "json", "env"]
_DURATION: Final = re.compile(r"([1-9][0-9]{0,5})([smhd])")


@dataclass(frozen=True, slots=True)
class TokenHolder:
    """The participant or observer of a token, as given on the command line."""

    participant: Annotated[
        str | None, participant_argument("Id of a participant in space.yaml (default: list the tokens).")
    ] = None
    observer: Annotated[
        str | None, option("--observer NAME", "Name of an observer: it reads board and history, sends nothing.")
    ] = None

    @property
    def id(self) -> str:
        """The given id."""
        return self.participant or str(self.observer)

    def file(self, state: Path, *, must_exist: bool = True) -> Path:
        """Return the token's file in a state folder. Raises `ConfigError`, and `TokenError` if a token is missing."""
        if (self.participant is None) == (self.observer is None):
            raise ConfigError("PARTICIPANT", "give either a participant or --observer")
        if problem := id_problem(self.id):
            raise ConfigError("--observer" if self.participant is None else "PARTICIPANT", problem)
        file = observer_path(state, self.id) if self.participant is None else token_path(state, self.id)
        if must_exist and not file.exists():
            raise TokenError(f"{file}: no such token; `mew token` lists those of this space")
        return file


@dataclass(frozen=True, slots=True)
class NewTokenOptions:
    """The expiry and the output format of a new token, as given on the command line."""

    output: Annotated[TokenFormat, option("--format, --output, -o FORMAT", "Print text, json, or env for a shell.")] = (
        "text"
    )
    expires: Annotated[str | None, option("--expires TIME", "Create a token for this time, such as 30m, 8h or 7d.")] = (
        None
    )

    def expires_at(self) -> datetime | None:
        """Return when the token expires; None: never. Raises `ConfigError`."""
        if self.expires is None:
            return None
        match = _DURATION.fullmatch(self.expires)
        if match is None:
            raise ConfigError(
                "--expires", f"'{self.expires}' is not a duration", "a number with s, m, h or d, such as 8h"
            )
        return datetime.now(UTC) + timedelta(seconds=int(match[1]) * _SECONDS[match[2]])

    def print(self, name: str, space: SpaceConfig, token: str) -> None:
        """Print a token in the chosen format."""
        export = f"export {token_variable(name)}={shlex.quote(token)}"
        outcome = {"participant": name, "space": space.space.id, "token": token}
        terminal.print_outcome(export if self.output == "env" else token, outcome)


def token(
    holder: TokenHolder,
    *,
    replace: Annotated[bool, option("--replace", "Replace the token with a new one.")] = False,
    revoke: Annotated[bool, option("--revoke", "Delete the token.")] = False,
    new: NewTokenOptions,
    capabilities: Annotated[str | None, option("--capabilities, -c JSON", hidden=True)] = None,
    place: SpaceFileOptions,
) -> None:
    """Print, create, replace or revoke a token; without a participant, list the tokens.

    A missing token is created. Tokens are stored in .mew/tokens, readable by you alone. A running space accepts a new
    token at once. After --replace, --expires or --revoke the old token stops working at once, and a running space
    closes its holder's connections. Restart the programs that use the old token. `mew invite` invites a participant
    that is not in space.yaml.
    """
    OUTPUT.is_json |= new.output == "json"
    if replace and revoke:
        raise ConfigError("--replace", "cannot be combined with --revoke")
    if holder.participant is None and holder.observer is None and not (replace or revoke):
        _list(place)
    elif revoke:
        _revoke(holder, place)
    elif replace:
        path = space_config_path(place.config, place.folder)
        space, file = load_space(path), holder.file(state_dir(path))
        new.print(holder.id, space, write_new_token(file, new.expires_at()).token)
    else:
        _create(holder, place, new, capabilities)


def _create(holder: TokenHolder, place: SpaceFileOptions, new: NewTokenOptions, capabilities: str | None) -> None:
    path = space_config_path(place.config, place.folder)
    space, state, expires_at = load_space(path), state_dir(path), new.expires_at()
    file, participant = holder.file(state, must_exist=False), holder.participant
    if participant is not None:
        _admit(space, participant, capabilities, path)
    elif capabilities is not None:
        raise ConfigError("--capabilities", "needs a participant")
    if expires_at is not None:
        token = write_new_token(file, expires_at).token
    elif participant is not None:
        token = ensure_token(state, participant)
    else:
        stored = read_token_file(file)
        if stored is None or stored.has_expired(datetime.now(UTC)):
            stored = write_new_token(file)
        token = stored.token
    new.print(holder.id, space, token)


def _revoke(holder: TokenHolder, place: SpaceFileOptions) -> None:
    path, participant = space_config_path(place.config, place.folder), holder.participant
    file = holder.file(state_dir(path))
    try:
        remove_token_file(file)
    except OSError as error:
        raise TokenError(f"{file}: cannot be removed: {error}") from None
    terminal.print_outcome(f"{holder.id}: token revoked", {"id": holder.id, "revoked": True})
    if participant is not None and (others := load_space(path).participants.get(participant)) and others.tokens:
        terminal.warn(f"the tokens of {participant} in {path} stay valid; remove them there")


def _list(place: SpaceFileOptions) -> None:
    """List the token files of a space, without the tokens."""
    path = space_config_path(place.config, place.folder)
    load_space(path)
    now = datetime.now(UTC)
    rows = []
    for file in sorted((state_dir(path) / "tokens").glob("*.*")):
        if file.suffix not in (".token", ".observer") or (stored := read_token_file(file)) is None:
            continue
        expires = None if stored.expires_at is None else stored.expires_at.isoformat(timespec="seconds")
        role = "participant" if file.suffix == ".token" else "observer"
        rows.append({"id": file.stem, "role": role, "expires_at": expires, "expired": stored.has_expired(now)})
    if OUTPUT.is_json:
        terminal.print_json(rows)
        return
    for row in rows:
        ends = "no expiry" if row["expires_at"] is None else f"expires {row['expires_at']}"
        terminal.print_line(f"{row['id']}  {row['role']}  {'expired' if row['expired'] else ends}")


def _admit(space: SpaceConfig, participant: str, capabilities: str | None, path: Path) -> None:
    """Check that a participant may have a token, and invite it into the running space if it is new."""
    known = participant in space.participants
    if known and capabilities is not None:
        raise ConfigError("--capabilities", f"'{participant}' already has capabilities in {path}")
    if capabilities is None:
        if not known:
            raise not_in_space("PARTICIPANT", participant, space, path)
        wanted = [*space.patterns_of(participant)]
    else:
        wanted = read_capabilities("--capabilities", capabilities)
        if (unfit := typed_id_problem(participant)) is not None:
            raise ConfigError("PARTICIPANT", unfit)
        warn_of_unknown_kinds(wanted)
    running = running_space(path, space)
    if running is None and not known:
        raise ConfigError("--capabilities", "requires a running space; `mew up` starts it")
    if capabilities is not None:
        terminal.warn(f"`mew invite {participant}` replaces --capabilities here")
    if running is not None and not running.has_member(participant):
        running.invite(participant, wanted)
