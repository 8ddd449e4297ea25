"""Stores who may join a space, and their tokens, in the space's state folder.

Owns `<state>/roster.json` and its form: the invitations and removals of a space, readable by its owner alone. Other
parts of the durable state last as long as the gateway runs. Who may invite or remove is decided in
`core.membership_rules`. Tokens have files of their own (`auth`).
"""

import logging
from collections.abc import Iterable
from pathlib import Path

from mew_protocol.ids import ParticipantId
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mew_spaces.config.settings import SpaceConfig
from mew_spaces.core.state import Change, Invitation, SpaceState
from mew_spaces.errors import SpacesError, TokenError
from mew_spaces.gateway.auth import TokenBook, ensure_token, remove_token, store_token
from mew_spaces.private_files import replace_private_file

ROSTER_FILE_NAME = "roster.json"

_STORED_TABLES = ("invited", "removed")

log = logging.getLogger("spaces")


class _RosterFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    invited: dict[str, Invitation] = Field(default_factory=dict)
    removed: set[str] = Field(default_factory=set)


class MembershipStore:
    """The stored membership of one space, and its tokens. Without a state folder nothing is stored."""

    def __init__(self, config: SpaceConfig, tokens: TokenBook, folder: Path | None) -> None:
        """Read what earlier runs stored, and add the tokens of invited participants to `tokens`.

        Raises `SpacesError` if a file cannot be read.
        """
        self.tokens = tokens
        self.state = SpaceState() if folder is None else _read(folder / ROSTER_FILE_NAME)
        self._folder = folder
        for participant in self.state.removed:
            tokens.remove(participant)
        for participant, invitation in self.state.invited.items():
            is_in_force = invitation.above_configured or participant not in config.participants
            if folder is not None and is_in_force:
                tokens.remove(participant)
                tokens.add(participant, ensure_token(folder, participant))

    def store(self, changes: Iterable[Change]) -> None:
        """Store changes that were applied to `state`. A failure is logged; the changes still hold for this run."""
        changed = [change.key for change in changes if change.table in _STORED_TABLES]
        if self._folder is None or not changed:
            return
        path = self._folder / ROSTER_FILE_NAME
        try:
            roster = _RosterFile(invited=self.state.invited, removed=self.state.removed)
            replace_private_file(path, roster.model_dump_json(indent=2) + "\n")
        except OSError as error:
            names = ", ".join(dict.fromkeys(changed))
            log.error("%s: not written, so the invitation or removal of %s ends with this run: %s", path, names, error)

    def add_token(self, participant: ParticipantId, token: str) -> None:
        """Accept a new token and store it. A failure to store is logged; the token still counts for this run."""
        self.tokens.add(participant, token)
        if self._folder is None:
            return
        try:
            store_token(self._folder, participant, token)
        except (OSError, TokenError) as error:
            log.error("the token of %s is not stored and ends with this run: %s", participant, error)

    def revoke_tokens(self, participant: ParticipantId) -> None:
        """Accept no token of a participant any more, and remove its token file. A failure to remove it is logged."""
        self.tokens.remove(participant)
        if self._folder is None:
            return
        try:
            remove_token(self._folder, participant)
        except OSError as error:
            log.error("the token file of %s is not removed: %s", participant, error)


def _read(path: Path) -> SpaceState:
    try:
        stored = _RosterFile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return SpaceState()
    except (OSError, ValidationError) as error:
        problem = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else error
        text = f"{path}: not a valid list of invited and removed participants: {problem}; restore it or delete it"
        raise SpacesError(text) from None
    return SpaceState(invited=stored.invited, removed=stored.removed)
