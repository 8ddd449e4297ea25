"""Tokens: who may be whom. A token names exactly one participant.

Owns where tokens come from (the environment, `<state>/tokens/<id>.token`, `tokens:` in space.yaml) and their
files. Does not know what a participant may do once it is known.
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

STATE_NAME = ".mew"

TOKEN_BYTES = 32
"""How much chance is in a token of ours."""

_READABLE_BY_OTHERS = 0o077


def state_dir(config_path: Path | str) -> Path:
    """Where a space keeps tokens, logs and its run file: the `.mew` beside its space.yaml, or the one it lies in."""
    folder = Path(config_path).resolve().parent
    return folder if folder.name == STATE_NAME else folder / STATE_NAME


def space_folder(state: Path) -> Path:
    """The folder of the space that a state folder belongs to: the one around a `.mew`, else the state folder itself."""
    return state.parent if state.name == STATE_NAME else state


def token_path(state: Path, participant: str) -> Path:
    """The file of a participant's token."""
    return state / "tokens" / f"{participant}.token"


def token_variable(participant: str) -> str:
    """The environment variable that overrides a participant's token file."""
    return "MEW_TOKEN_" + participant.upper().replace("-", "_")


def read_token(state: Path, participant: str, *, environ: Mapping[str, str] = os.environ) -> str | None:
    """A participant's token from the environment or its file; None when there is neither. Raises `TokenError`."""
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
        raise TokenError(f"{path}: holds no token; remove it and a new one is made")
    return stored


def ensure_token(state: Path, participant: str, *, environ: Mapping[str, str] = os.environ) -> str:
    """A participant's token, made and stored (0600, in a folder 0700) when there is none. Raises `TokenError`."""
    known = read_token(state, participant, environ=environ)
    if known is not None:
        _keep_private(token_path(state, participant))
        return known
    path = token_path(state, participant)
    try:
        _make_private_folder(path.parent)
        _write_once(path, secrets.token_urlsafe(TOKEN_BYTES))
    except OSError as error:
        raise TokenError(f"{path}: cannot be stored: {error}") from None
    stored = read_token(state, participant, environ={})
    if stored is None:
        raise TokenError(f"{path}: vanished while it was made")
    return stored


def store_token(state: Path, participant: str, token: str) -> None:
    """Keep a token made elsewhere in its file, in place of an older one. Raises `OSError`."""
    path = token_path(state, participant)
    _make_private_folder(path.parent)
    path.unlink(missing_ok=True)
    _write_once(path, token)


def remove_token(state: Path, participant: str) -> None:
    """Remove a participant's token file. Raises `OSError`."""
    token_path(state, participant).unlink(missing_ok=True)


class TokenBook:
    """Token to participant and back. Holds digests for looking up, so a lookup's time tells nothing of a token."""

    def __init__(self, tokens: Iterable[tuple[str, str]] = ()) -> None:
        """`tokens` are (participant, token) pairs, a participant's preferred one first. Raises `TokenError`."""
        self._owners: dict[bytes, tuple[ParticipantId, bytes]] = {}
        self._preferred: dict[str, str] = {}
        for participant, token in tokens:
            self.add(participant, token)

    @classmethod
    def load(cls, config: SpaceConfig, state: Path, *, environ: Mapping[str, str] = os.environ) -> "TokenBook":
        """The tokens of every configured participant, making files for those without. Raises `TokenError`."""
        book = cls()
        for participant, configured in config.participants.items():
            book.add(participant, ensure_token(state, participant, environ=environ))
            for token in configured.tokens:
                book.add(participant, token)
        return book

    @classmethod
    def generate(cls, config: SpaceConfig) -> "TokenBook":
        """Tokens for one run: those of space.yaml and a fresh one for everybody. Nothing is stored."""
        book = cls()
        for participant, configured in config.participants.items():
            for token in configured.tokens or (secrets.token_urlsafe(TOKEN_BYTES),):
                book.add(participant, token)
        return book

    def add(self, participant: str, token: str) -> None:
        """Let a token name a participant. Raises `TokenError` when it is empty or names another one already."""
        if not token:
            raise TokenError(f"the token of '{participant}' is empty")
        digest = _digest(token)
        owner = self._owners.get(digest)
        if owner is not None and owner[0] != participant:
            raise TokenError(
                f"'{participant}' and '{owner[0]}' share a token; a token names exactly one participant "
                f"(see {token_variable(participant)}, the token files and 'tokens:')"
            )
        self._owners[digest] = (ParticipantId(participant), token.encode(errors="surrogatepass"))
        self._preferred.setdefault(participant, token)

    def remove(self, participant: str) -> None:
        """Make every token of a participant worthless."""
        self._owners = {digest: owner for digest, owner in self._owners.items() if owner[0] != participant}
        self._preferred.pop(participant, None)

    def knows(self, participant: str) -> bool:
        """Whether any token names this participant."""
        return participant in self._preferred

    def identify(self, token: str | None) -> ParticipantId | None:
        """Whose token this is, or None. The comparison takes the same time wherever two tokens differ."""
        if not token:
            return None
        owner = self._owners.get(_digest(token))
        if owner is None or not hmac.compare_digest(owner[1], token.encode(errors="surrogatepass")):
            return None
        return owner[0]

    def token_of(self, participant: str) -> str | None:
        """The token to hand to a participant's program."""
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
    """Take a token file's permissions back from others, where it exists and they have some."""
    try:
        if path.stat().st_mode & _READABLE_BY_OTHERS:
            path.chmod(0o600)
    except FileNotFoundError:
        return
    except OSError as error:
        raise TokenError(f"{path}: others may read it and its permissions cannot be changed: {error}") from None


def _write_once(path: Path, token: str) -> None:
    """Store a token unless another process was faster; nobody ever sees a half-written file."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(token + "\n")
        try:
            os.link(draft, path)
        except FileExistsError:
            return
    finally:
        draft.unlink(missing_ok=True)
