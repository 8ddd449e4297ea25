"""Tokens: each one identifies exactly one participant.

Owns the sources of tokens (the environment, `<state>/tokens/<id>.token`, `tokens:` in space.yaml) and the token files.
Does not know what a participant may do.
"""

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from mew_protocol.ids import ParticipantId

from mew_spaces.config.loading import SpaceConfig
from mew_spaces.errors import TokenError
from mew_spaces.private_files import create_private_file, replace_private_file

STATE_NAME = ".mew"

TOKEN_BYTES = 32
"""Random bytes in a generated token."""

_READABLE_BY_OTHERS = 0o077


def state_dir(config_path: Path | str) -> Path:
    """Return the state folder of a space (tokens, logs, run file): the `.mew` next to its space.yaml or around it."""
    folder = Path(config_path).resolve().parent
    return folder if folder.name == STATE_NAME else folder / STATE_NAME


def space_folder(state: Path) -> Path:
    """Return the folder of a space: the parent of its `.mew`, or the state folder itself if that has another name."""
    return state.parent if state.name == STATE_NAME else state


def token_path(state: Path, participant: str) -> Path:
    """Return the token file of a participant."""
    return state / "tokens" / f"{participant}.token"


def token_variable(participant: str) -> str:
    """Return the environment variable that overrides the token file of a participant."""
    return "MEW_TOKEN_" + participant.upper().replace("-", "_")


def read_token(state: Path, participant: str, *, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return a participant's token from the environment or its file, or None. Raises `TokenError`."""
    given = environ.get(token_variable(participant), "").strip()
    if given:
        return given
    path = token_path(state, participant)
    try:
        stored = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise TokenError(f"{path}: cannot be read: {error}") from None
    if not stored:
        raise TokenError(f"{path}: is empty; delete it to get a new token")
    return stored


def ensure_token(state: Path, participant: str, *, environ: Mapping[str, str] = os.environ) -> str:
    """Return a participant's token; without one, generate and store it (0600, folder 0700). Raises `TokenError`."""
    known = read_token(state, participant, environ=environ)
    if known is not None:
        _keep_private(token_path(state, participant))
        return known
    path = token_path(state, participant)
    try:
        _make_private_folder(path.parent)
        create_private_file(path, secrets.token_urlsafe(TOKEN_BYTES) + "\n")
    except OSError as error:
        raise TokenError(f"{path}: cannot be stored: {error}") from None
    stored = read_token(state, participant, environ={})
    if stored is None:
        raise TokenError(f"{path}: was deleted while it was created; try again")
    return stored


def store_token(state: Path, participant: str, token: str) -> None:
    """Store a token in its file, in place of an older one. Raises `OSError`."""
    path = token_path(state, participant)
    _make_private_folder(path.parent)
    replace_private_file(path, token + "\n")


def remove_token(state: Path, participant: str) -> None:
    """Delete the token file of a participant. Raises `OSError`."""
    token_path(state, participant).unlink(missing_ok=True)


class TokenBook:
    """The valid tokens of one space. Tokens are looked up by digest, so the time of a lookup reveals nothing."""

    def __init__(self, tokens: Iterable[tuple[str, str]] = ()) -> None:
        """`tokens` are (participant, token) pairs, the preferred token of a participant first. Raises `TokenError`."""
        self._owners: dict[bytes, tuple[ParticipantId, bytes]] = {}
        self._preferred: dict[str, str] = {}
        for participant, token in tokens:
            self.add(participant, token)

    @classmethod
    def load(cls, config: SpaceConfig, state: Path, *, environ: Mapping[str, str] = os.environ) -> "TokenBook":
        """Return the tokens of every configured participant, and generate missing ones. Raises `TokenError`."""
        book = cls()
        for participant, configured in config.participants.items():
            book.add(participant, ensure_token(state, participant, environ=environ))
            for token in configured.tokens:
                book.add(participant, token)
        return book

    @classmethod
    def generate(cls, config: SpaceConfig) -> "TokenBook":
        """Return tokens for one run: those in space.yaml, and new ones for other participants. Stores nothing."""
        book = cls()
        for participant, configured in config.participants.items():
            for token in configured.tokens or (secrets.token_urlsafe(TOKEN_BYTES),):
                book.add(participant, token)
        return book

    def add(self, participant: str, token: str) -> None:
        """Accept a token for a participant. Raises `TokenError` if it is empty or belongs to another participant."""
        if not token:
            raise TokenError(f"the token of '{participant}' is empty")
        digest = _digest(token)
        owner = self._owners.get(digest)
        if owner is not None and owner[0] != participant:
            raise TokenError(
                f"'{participant}' and '{owner[0]}' have the same token; give each its own "
                f"({token_variable(participant)}, the token files, or 'tokens:' in space.yaml)"
            )
        self._owners[digest] = (ParticipantId(participant), token.encode(errors="surrogatepass"))
        self._preferred.setdefault(participant, token)

    def remove(self, participant: str) -> None:
        """Revoke every token of a participant."""
        self._owners = {digest: owner for digest, owner in self._owners.items() if owner[0] != participant}
        self._preferred.pop(participant, None)

    def knows(self, participant: str) -> bool:
        """Return whether this participant has a token."""
        return participant in self._preferred

    def identify(self, token: str | None) -> ParticipantId | None:
        """Return the participant of a token, or None. The comparison takes constant time."""
        if not token:
            return None
        owner = self._owners.get(_digest(token))
        if owner is None or not hmac.compare_digest(owner[1], token.encode(errors="surrogatepass")):
            return None
        return owner[0]

    def token_of(self, participant: str) -> str | None:
        """Return the preferred token of a participant, or None."""
        return self._preferred.get(participant)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def _make_private_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")


def _keep_private(path: Path) -> None:
    """Make an existing token file private. Raises `TokenError`."""
    try:
        if path.stat().st_mode & _READABLE_BY_OTHERS:
            path.chmod(0o600)
    except FileNotFoundError:
        return
    except OSError as error:
        raise TokenError(
            f"{path}: other users can read it, and its mode cannot be changed: {error}; run chmod 600 on it"
        ) from None
