"""Who has a place and by which token, beyond space.yaml: what invitations and removals change, and what of it lasts.

Owns that memory and the state folder say the same, as far as the folder can be written. Whether somebody may invite or
remove is decided in `delegation`.
"""

import logging
from pathlib import Path

from mew_protocol.ids import ParticipantId

from mew_spaces.config.loading import SpaceConfig
from mew_spaces.core.roster import Roster
from mew_spaces.errors import TokenError
from mew_spaces.gateway.auth import TokenBook, ensure_token, forget_token, store_token
from mew_spaces.gateway.roster_file import read_roster, write_roster

log = logging.getLogger("spaces")


class Register:
    """The tokens of one space, and its roster as it was when the space was opened. Without `state` nothing lasts."""

    def __init__(self, config: SpaceConfig, tokens: TokenBook, state: Path | None) -> None:
        """Reads what is kept of earlier runs, with the tokens that go with it. Raises `SpacesError`."""
        self.tokens = tokens
        self.roster = Roster() if state is None else read_roster(state)
        self._state = state
        for participant in self.roster.removed:
            tokens.remove(participant)
        for participant in self.roster.invited:
            is_configured = participant in config.participants
            if state is not None and self.roster.place_of(participant, is_configured=is_configured) is not None:
                tokens.remove(participant)
                tokens.add(participant, ensure_token(state, participant))

    def enrol(self, participant: ParticipantId, token: str, roster: Roster) -> None:
        """A token begins to count. That it could not be stored is said here; it counts until the gateway stops."""
        self.tokens.add(participant, token)
        if self._state is not None:
            try:
                store_token(self._state, participant, token)
                write_roster(self._state, roster)
            except (OSError, TokenError) as error:
                log.error("the invitation of %s is not kept beyond this run: %s", participant, error)

    def strike(self, participant: ParticipantId, roster: Roster) -> None:
        """No token of somebody counts any more. That this could not be stored is said here."""
        self.tokens.remove(participant)
        if self._state is not None:
            try:
                write_roster(self._state, roster)  # first: it keeps out whoever still has a token
                forget_token(self._state, participant)
            except OSError as error:
                log.error("the removal of %s is not kept beyond this run: %s", participant, error)
