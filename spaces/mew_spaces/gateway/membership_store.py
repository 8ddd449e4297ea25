"""Stores the participants that may join a space, and their tokens, in the space's state folder.

Owns `<state>/roster.json` and its form: the invitations and removals of a space, readable by its owner alone. Other
parts of the durable state are kept with the log: grants, pauses, proposals, streams, the board. Who may invite or
remove is decided in `core.membership_rules`. Tokens have separate files (`auth`).
"""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from mew_protocol.ids import ParticipantId
from mew_protocol.patterns import BudgetExceeded
from mew_protocol.payloads.participant import Status
from mew_settings.private_files import ReservedFile, replace_private_file
from mew_settings.setting_problems import first_problem
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mew_spaces.config.settings import SpaceConfig
from mew_spaces.core.containment import covers
from mew_spaces.core.membership import Membership
from mew_spaces.core.state import Change, Invitation, ReportedStatus, SpaceState, Stream
from mew_spaces.errors import SpacesError, TokenError
from mew_spaces.gateway.auth import (
    StoredToken,
    TokenBook,
    remove_token_file,
    token_path,
    write_new_token,
    write_token_file,
)
from mew_spaces.log.memory import SpaceLog

ROSTER_FILE_NAME = "roster.json"

ROSTER_TABLES = frozenset({"invited", "removed"})
"""The contents of the roster file: it is on the disk before a change is answered, also where the log is not."""

_ENTRY_BYTES = 4096
"""How much an invitation or removal takes in the roster beyond the size of its envelope, with room to spare."""

_LOG_PREFIX = "space/"
_STREAMS_OPENED = "space:streams_opened"

log = logging.getLogger("mew_spaces")


class _RosterFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    invited: dict[str, Invitation] = Field(default_factory=dict)
    removed: set[str] = Field(default_factory=set)


class MembershipStore:
    """The stored membership of one space, and its tokens. Without a state folder nothing is stored."""

    def __init__(
        self, config: SpaceConfig, tokens: TokenBook, folder: Path | None, space_log: SpaceLog | None = None
    ) -> None:
        """Read the state of earlier runs, and add the tokens of invited participants to `tokens`.

        Raises `SpacesError` if a file cannot be read.
        """
        self.tokens = tokens
        self.state = SpaceState() if folder is None else _read(folder / ROSTER_FILE_NAME)
        self._folder = folder
        self._log = space_log
        self.reserved: ReservedFile | None = None
        """Disk space for a change that is being stored."""
        if space_log is not None:
            _restore(self.state, space_log.state())
        invited = self.state.invited
        ended = [name for name in invited if invited[name].until_restart and name not in config.participants]
        for participant in ended:
            del invited[participant]
        self.forget_former(config)
        for participant in self.state.removed:
            tokens.remove(participant)  # space.yaml still names it, so its token was loaded
        if folder is not None:
            overridden = self._load_tokens(config, folder)
            if overridden:
                self._end_overridden(config, overridden, folder)
            elif ended:
                self._write_at_start(folder)

    def _load_tokens(self, config: SpaceConfig, folder: Path) -> list[str]:
        """Add the tokens of invited participants. Returns the participants that space.yaml names meanwhile."""
        overridden = []
        for participant, invitation in self.state.invited.items():
            if not invitation.above_configured and participant in config.participants:
                overridden.append(participant)
            else:
                # An invitation above space.yaml came with a new token; the configured one was removed for good.
                self.tokens.remove(participant)
                self.tokens.load_token(participant, folder)
        return overridden

    def forget_former(self, config: SpaceConfig) -> None:
        """Forget participants that neither space.yaml nor an invitation names any more.

        Rights that came from there, or from what space.yaml no longer gives, end.
        """
        state = self.state
        known = config.participants.keys() | state.invited.keys()
        named = dict.fromkeys([*state.grants, *state.pauses, *state.shut_down, *state.statuses])
        changes = [change for name in named if name not in known for change in state.without(name)]
        for change in changes:
            state.apply(change)
        settled, ended = Membership(config, state).end_unfounded()
        for change in settled:
            state.apply(change)
        for one in ended:
            log.info(
                "%s: no longer has %d capabilities that '%s' gave",
                one.participant,
                len(one.capabilities),
                one.granted_by,
            )
        self.stage((*changes, *settled))
        self.write_roster((*changes, *settled))

    def _end_overridden(self, config: SpaceConfig, overridden: Iterable[str], folder: Path) -> None:
        """End invitations of participants that are in space.yaml now. Raises `TokenError`.

        The inviter knows the token that it got for the invited one. If space.yaml gives that participant more than
        the inviter holds, the token is replaced: it would give the inviter more than its own.
        """
        membership = Membership(config, self.state)
        for participant in overridden:
            held = membership.permissions_of(self.state.invited[participant].invited_by).patterns
            wanted = config.patterns_of(participant)
            try:
                is_held = all(covers(held, one, ignore_to=config.capabilities.ignore_to) for one in wanted)
            except BudgetExceeded:
                is_held = False
            if not is_held:
                log.info("%s: replaced its token, because space.yaml grants it more than its inviter may", participant)
                write_new_token(token_path(folder, participant))
        self.tokens.refresh()
        # After the tokens: a crash in between replaces them again, but never leaves the inviter's token valid.
        for participant in overridden:
            del self.state.invited[participant]
        self._write_at_start(folder)

    def _write_at_start(self, folder: Path) -> None:
        try:
            replace_private_file(folder / ROSTER_FILE_NAME, self._content())
        except OSError as error:
            log.error("%s: not written, so the next start replaces the same tokens again: %s", folder, error)

    def reserve(self, envelope_bytes: int) -> None:
        """Reserve disk space for the change by an envelope of this size. Raises `OSError`."""
        if self._folder is not None:
            self.release()
            needed_bytes = len(self._content().encode()) + envelope_bytes + _ENTRY_BYTES
            self.reserved = ReservedFile(self._folder / ROSTER_FILE_NAME, needed_bytes)

    def release(self) -> None:
        """Give reserved disk space back, if it is not used."""
        if self.reserved is not None:
            self.reserved.release()
            self.reserved = None

    def stage(self, changes: Iterable[Change]) -> None:
        """Have changes stored with the next batch of the log."""
        if self._log is None or self._log.durability == "memory":
            return
        for change in changes:
            stored = None if change.value is None else change.encode()
            self._log.put(f"{_LOG_PREFIX}{change.table}/{change.key}", stored)
            if isinstance(change.value, Stream):
                opened = max(self.state.streams_opened, change.value.number)
                self._log.put(_STREAMS_OPENED, str(opened).encode())

    def write_roster(self, changes: Iterable[Change]) -> None:
        """Write the roster file if changes that were applied to `state` concern it.

        One that cannot be written is logged; its changes still hold for this run.
        """
        changed = [change.key for change in changes if change.table in ROSTER_TABLES]
        if self._folder is None or not changed:
            return
        path = self._folder / ROSTER_FILE_NAME
        try:
            if self.reserved is not None:
                self.reserved.replace(self._content())
                self.reserved = None
            else:
                replace_private_file(path, self._content())
        except OSError as error:
            names = ", ".join(dict.fromkeys(changed))
            log.error(
                "%s: not written, so the last change of who may join (%s) ends with this run: %s", path, names, error
            )

    def _content(self) -> str:
        roster = _RosterFile(invited=self.state.invited, removed=self.state.removed)
        return roster.model_dump_json(indent=2) + "\n"

    def add_token(self, participant: ParticipantId, token: str) -> None:
        """Accept a new token and store it. A failure to store is logged; the token still counts for this run."""
        self.tokens.add(participant, token)
        if self._folder is None:
            return
        try:
            write_token_file(token_path(self._folder, participant), StoredToken(token))
            self.tokens.follow(participant, self._folder)
        except (OSError, TokenError) as error:
            log.error("the token of %s is not stored and ends with this run: %s", participant, error)

    def revoke_tokens(self, participant: ParticipantId) -> None:
        """Accept no token of a participant any more, and remove its token file. A failure to remove it is logged."""
        self.tokens.remove(participant)
        if self._folder is None:
            return
        try:
            remove_token_file(token_path(self._folder, participant))
        except OSError as error:
            log.error("the token file of %s is not removed: %s", participant, error)


def _read(path: Path) -> SpaceState:
    try:
        stored = _RosterFile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return SpaceState()
    except (OSError, ValidationError) as error:
        problem = first_problem(error) if isinstance(error, ValidationError) else error
        text = f"{path}: not a valid list of invited and removed participants: {problem}; restore it or delete it"
        raise SpacesError(text) from None
    return SpaceState(invited=stored.invited, removed=stored.removed)


def _restore(state: SpaceState, stored: Mapping[str, bytes]) -> None:
    """Apply the changes that were kept with the log; one that this version cannot read is logged and left out."""
    for key, value in stored.items():
        if not key.startswith(_LOG_PREFIX):
            continue
        try:
            change = Change.decode(value)
            if isinstance(change.value, ReportedStatus):
                Status.model_validate(change.value.status)  # one that cannot be read would make the board unreadable
        except ValueError as error:
            log.warning("%s: not restored: %s", key, error)
            continue
        if change.table not in ROSTER_TABLES:
            state.apply(change)
    state.streams_opened = max(state.streams_opened, int(stored.get(_STREAMS_OPENED, b"0")))
