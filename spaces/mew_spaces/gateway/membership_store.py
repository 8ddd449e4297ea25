"""Stores the durable state of a space in its log, and the tokens of its participants in the state folder.

Invitations and removals are on the disk before their answer, regardless of the history's durability.
`core.membership_rules` decides who may invite or remove. Tokens have separate files (`auth`).
"""

import logging
from collections.abc import Iterable
from pathlib import Path

from mew_protocol.ids import ParticipantId
from mew_protocol.patterns import BudgetExceeded
from mew_protocol.payloads.participant import Status

from mew_spaces.config.settings import SpaceConfig
from mew_spaces.core.containment import covers
from mew_spaces.core.membership import Membership
from mew_spaces.core.state import Change, ReportedStatus, SpaceState, Stream
from mew_spaces.errors import SpacesError, TokenError
from mew_spaces.gateway.auth import (
    StoredToken,
    TokenBook,
    remove_token_file,
    token_path,
    write_new_token,
    write_token_file,
)
from mew_spaces.log.memory import SYNCED_PREFIX, SpaceLog

_MEMBER_TABLES = frozenset({"invited", "removed"})
_PREFIX = "space/"
_STREAMS_OPENED = "space:streams_opened"

log = logging.getLogger("mew_spaces")


class MembershipStore:
    """The stored state of one space, and its tokens."""

    def __init__(
        self,
        config: SpaceConfig,
        tokens: TokenBook,
        folder: Path | None,
        space_log: SpaceLog,
        *,
        is_shared: bool = False,
    ) -> None:
        """Read the state of earlier runs, and add the tokens of invited participants to `tokens`.

        Without a state folder, no tokens are stored. With several gateways, the state is elsewhere. For a gateway that
        starts alone, the log keeps the entries that are still valid there, and the removals. Raises `SpacesError` if an
        invitation or a removal cannot be read, and `TokenError`.
        """
        self.tokens = tokens
        self.state = SpaceState() if is_shared else _read(space_log)
        self._folder = folder
        self._log = space_log
        self._is_shared = is_shared
        invited = self.state.invited
        temporary = [name for name in invited if invited[name].until_restart]
        self._end_invitations(
            one for one in temporary if invited[one].above_configured or one not in config.participants
        )
        self.forget_former(config)
        for participant in self.state.removed:
            self.revoke_tokens(ParticipantId(participant))  # loaded, because space.yaml still names it
        if folder is not None and (overridden := self._load_tokens(config, folder)):
            self._end_overridden(config, overridden, folder)

    def _end_invitations(self, participants: Iterable[str]) -> None:
        """End invitations. A participant that was removed before its invitation is removed again."""
        changes = []
        for name in participants:
            removed = [Change("removed", name, value=True)] if self.state.invited[name].above_configured else []
            changes += [Change("invited", name), *removed]
        for change in changes:
            self.state.apply(change)
        self.stage(changes)

    def _load_tokens(self, config: SpaceConfig, folder: Path) -> list[str]:
        """Add the tokens of invited participants. Returns those that space.yaml now names."""
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
        """Forget participants that neither space.yaml nor an invitation names.

        Ends the rights that depend on them, or on patterns removed from space.yaml.
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

    def _end_overridden(self, config: SpaceConfig, overridden: Iterable[str], folder: Path) -> None:
        """End invitations of participants that space.yaml now names. Raises `TokenError`.

        The inviter knows the invited participant's token. If space.yaml gives that participant more rights than the
        inviter has, the token is replaced, so that the inviter gains none.
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
        # Replace tokens first: after a crash in between they are replaced again, and the inviter's token is never
        # valid.
        self._end_invitations(overridden)

    def stage(self, changes: Iterable[Change]) -> None:
        """Store changes with the next batch of the log.

        For a shared space, store only removals, and delete entries that change there.
        """
        for change in changes:
            key = _key(change)
            if not self._is_shared:
                if change.table in _MEMBER_TABLES or self._log.durability != "memory":
                    self._log.put(key, None if change.value is None else change.encode())
            elif change.table == "removed":
                if change.value:  # an invitation that is not stored lifts no removal
                    self._log.put(key, change.encode())
            elif key in self._log.state():
                self._log.put(key, None)
            if isinstance(change.value, Stream) and self._log.durability != "memory":
                opened = max(self.state.streams_opened, change.value.number)
                self._log.put(_STREAMS_OPENED, str(opened).encode())

    def mirror(self, state: SpaceState) -> None:
        """Follow a shared state. The folder keeps its removals, gets those of the state, and keeps equal entries."""
        self.state = state
        shared = {_key(change): change for change in state.changes()}
        for key, value in self._log.state().items():
            is_state = key.removeprefix(SYNCED_PREFIX).startswith(_PREFIX) and not key.startswith(_REMOVED_KEY)
            if is_state and (key not in shared or shared[key].encode() != value):
                self._log.put(key, None)
        self.stage(Change("removed", name, value=True) for name in state.removed)

    def write_token(self, participant: ParticipantId, token: str) -> None:
        """Store the token for a new invitation. Log a failure."""
        if self._folder is None:
            return
        try:
            write_token_file(token_path(self._folder, participant), StoredToken(token))
        except (OSError, TokenError) as error:
            log.error("the token of %s is not stored and ends with this run: %s", participant, error)

    def add_token(self, participant: ParticipantId, token: str) -> None:
        """Accept a new token, and watch its file."""
        self.tokens.add(participant, token)
        if self._folder is not None:
            self.tokens.follow(participant, self._folder)

    def revoke_tokens(self, participant: ParticipantId) -> None:
        """Stop accepting a participant's tokens, and delete its token file."""
        self.tokens.remove(participant)
        self.remove_token(participant)

    def remove_token(self, participant: ParticipantId) -> None:
        """Remove a token file. A failure is logged."""
        if self._folder is None:
            return
        try:
            remove_token_file(token_path(self._folder, participant))
        except OSError as error:
            log.error("the token file of %s is not removed: %s", participant, error)


def _key(change: Change) -> str:
    return f"{SYNCED_PREFIX if change.table in _MEMBER_TABLES else ''}{_PREFIX}{change.table}/{change.key}"


_INVITED_KEY, _REMOVED_KEY = _key(Change("invited", "")), _key(Change("removed", ""))


def move_removals(source: SpaceLog, target: SpaceLog) -> None:
    """Move the removals of one log into another, and end their invitations there. Raises `NotStored`."""
    removed = {key: value for key, value in source.state().items() if key.startswith(_REMOVED_KEY)}
    for key, value in removed.items():
        target.put(key, value)
        target.put(_INVITED_KEY + key.removeprefix(_REMOVED_KEY), None)
        source.put(key, None)
    for one in (target, source):  # the target first: a crash in between leaves both
        batch = one.seal()
        one.write(batch)
        one.publish(batch)


def _read(space_log: SpaceLog) -> SpaceState:
    """Return the stored state. Log and skip changes that this version cannot read.

    Raises `SpacesError` for an unreadable invitation or removal, without which others could join.
    """
    state, stored = SpaceState(), space_log.state()
    for key, value in stored.items():
        name = key.removeprefix(SYNCED_PREFIX)
        if not name.startswith(_PREFIX):
            continue
        try:
            change = Change.decode(value)
            if isinstance(change.value, ReportedStatus):
                Status.model_validate(change.value.status)  # an unreadable status would make the board unreadable
        except ValueError as error:
            if name != key:
                where = space_log.path or "the history"
                raise SpacesError(f"{where}: '{key}' cannot be read: {error}; restore or delete the file") from None
            log.warning("%s: not restored: %s", key, error)
            continue
        state.apply(change)
    state.streams_opened = max(state.streams_opened, int(stored.get(_STREAMS_OPENED, b"0")))
    return state
