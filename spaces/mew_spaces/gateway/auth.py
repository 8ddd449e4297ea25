"""Tokens: each identifies exactly one participant, or an observer that may not send.

Owns the sources of tokens (the environment, `<state>/tokens/<id>.token`, `tokens:` in space.yaml; for observers
`<state>/tokens/<name>.observer`), the token files, and the end of a token: its file changed or was deleted, or it
expired. A token file has only the token; the expiry is in `<file>.expires`. Does not know capabilities.
"""

import hashlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from mew_listener.descriptors import EXHAUSTED
from mew_listener.log_budget import survived
from mew_protocol.ids import ParticipantId
from mew_settings.private_files import create_private_file, make_private_folder, replace_private_file
from pydantic import AwareDatetime, TypeAdapter, ValidationError

from mew_spaces.errors import TokenError
from mew_spaces.gateway.clock import now_utc

if TYPE_CHECKING:  # commands and agents that only read a token need no models of space.yaml
    from mew_spaces.config.loading import SpaceConfig

STATE_NAME = ".mew"

TOKEN_BYTES = 32
"""Random bytes in a generated token."""

_READABLE_BY_OTHERS = 0o077
_EXPIRY_SUFFIX = ".expires"
_OBSERVER_SUFFIX = ".observer"

_EXPIRIES: Final = TypeAdapter(dict[str, AwareDatetime], config={"defer_build": True})
"""The content of an expiry file: the expiries of tokens by their SHA-256."""

log = logging.getLogger("mew_spaces")


class StoredToken(NamedTuple):
    """A token file: the token, and when it expires (None: never)."""

    token: str
    expires_at: datetime | None = None

    def has_expired(self, now: datetime) -> bool:
        """Return whether the token has expired."""
        return self.expires_at is not None and now >= self.expires_at


def generate_token() -> str:
    """Return a new random token."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def state_dir(config_path: Path | str) -> Path:
    """Return the state folder of a space (tokens, logs, run file): the `.mew` next to its space.yaml, or the folder
    with it.
    """
    folder = Path(config_path).resolve().parent
    return folder if folder.name == STATE_NAME else folder / STATE_NAME


def space_folder(state: Path) -> Path:
    """Return the folder of a space: the parent of its `.mew`, or the state folder itself if it has another name."""
    return state.parent if state.name == STATE_NAME else state


def token_path(state: Path, participant: str) -> Path:
    """Return the token file of a participant."""
    return state / "tokens" / f"{participant}.token"


def observer_path(state: Path, name: str) -> Path:
    """Return the token file of an observer."""
    return state / "tokens" / f"{name}{_OBSERVER_SUFFIX}"


def token_variable(participant: str) -> str:
    """Return the environment variable that overrides the token file of a participant."""
    return "MEW_TOKEN_" + participant.upper().replace("-", "_")


def read_token(state: Path, participant: str, *, environ: Mapping[str, str] | None = None) -> str | None:
    """Return a participant's token from the environment or its file, or None. Raises `TokenError`."""
    stored = None if (given := _given_token(participant, environ)) else read_token_file(token_path(state, participant))
    return given or (stored and stored.token)


def _given_token(participant: str, environ: Mapping[str, str] | None) -> str | None:
    """Return a participant's token in the environment, or None."""
    environ = os.environ if environ is None else environ
    return environ.get(token_variable(participant), "").strip() or None


def read_token_file(path: Path) -> StoredToken | None:
    """Read a token file and its expiry; None without a file. Raises `TokenError`."""
    try:
        token = path.read_text(encoding="utf-8").strip()
        while True:
            expires_at = _read_expiries(path).get(_digest(token).hex())
            before, token = token, path.read_text(encoding="utf-8").strip()
            if token == before:
                break  # else the token was replaced in between, and the expiry may be the old one
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        problem = TokenError(f"{path}: cannot be read: {error}")
        problem.passes = isinstance(error, OSError) and error.errno in EXHAUSTED
        raise problem from None
    if not token:
        raise TokenError(f"{path}: is empty; delete it to get a new token")
    if "\n" in token:
        raise TokenError(f"{path}: has more than one line, expected only the token; delete it to get a new token")
    return StoredToken(token, expires_at)


def ensure_token(state: Path, participant: str, *, environ: Mapping[str, str] | None = None) -> str:
    """Return a participant's token; without one, generate and store it (0600, folder 0700). Raises `TokenError`.

    An expired token is replaced by a new one that does not expire.
    """
    if given := _given_token(participant, environ):
        return given
    path = token_path(state, participant)
    stored = read_token_file(path)
    if stored is not None and not stored.has_expired(now_utc()):
        try:
            if path.stat().st_mode & _READABLE_BY_OTHERS:
                path.chmod(0o600)
        except OSError as error:
            raise TokenError(
                f"{path}: other users can read it, and its mode cannot be changed: {error}; run chmod 600 on it"
            ) from None
        return stored.token
    if stored is not None:
        return write_new_token(path).token
    try:
        _make_token_folder(path.parent)
        create_private_file(path, generate_token() + "\n")
    except OSError as error:
        raise TokenError(f"{path}: cannot be stored: {error}") from None
    stored = read_token_file(path)  # another process may have created it first
    if stored is None:
        raise TokenError(f"{path}: was deleted while it was being created; try again")
    return stored.token


def write_new_token(path: Path, expires_at: datetime | None = None) -> StoredToken:
    """Generate a token and store it in a file, replacing an older one. Raises `TokenError`."""
    stored = StoredToken(generate_token(), expires_at)
    try:
        write_token_file(path, stored)
    except OSError as error:
        raise TokenError(f"{path}: cannot be stored: {error}") from None
    return stored


def remove_token_file(path: Path) -> None:
    """Delete a token file and its expiry. Raises `OSError`."""
    path.unlink(missing_ok=True)
    _expiry_path(path).unlink(missing_ok=True)


def _expiry_path(path: Path) -> Path:
    return path.with_name(path.name + _EXPIRY_SUFFIX)


def _read_expiries(path: Path) -> dict[str, datetime]:
    """Return the expiries of a token file. Raises `OSError` and `ValueError`."""
    try:
        return _EXPIRIES.validate_json(_expiry_path(path).read_bytes())
    except FileNotFoundError:
        return {}
    except ValidationError:
        raise ValueError(f"{_expiry_path(path).name} must be an object of times") from None


def write_token_file(path: Path, stored: StoredToken) -> None:
    """Write a token and its expiry, replacing an older one. Raises `OSError`.

    The old token keeps its expiry, because a crash in between leaves it in the file.
    """
    _make_token_folder(path.parent)
    expiry_path = _expiry_path(path)
    if stored.expires_at is None:
        replace_private_file(path, stored.token + "\n")
        expiry_path.unlink(missing_ok=True)
        return
    try:
        newest = [*_read_expiries(path).items()][-1:]
    except ValueError:
        newest = []
    expiries = {**dict(newest), _digest(stored.token).hex(): stored.expires_at}
    replace_private_file(expiry_path, _EXPIRIES.dump_json(expiries).decode() + "\n")
    replace_private_file(path, stored.token + "\n")


@dataclass(slots=True)
class _WatchedFile:
    """The last read state of a token file. `ends_at` is monotonic, so that a wall clock set back prolongs nothing."""

    path: Path
    participant: ParticipantId | None
    """The participant that the token identifies; None for an observer."""
    mark: tuple[int, ...] | None = None
    stored: StoredToken | None = None
    ends_at: float | None = None


@dataclass(frozen=True, slots=True)
class _ValidToken:
    """A valid token. `participant` is None for an observer; `file` is None without a file."""

    text: str
    participant: ParticipantId | None
    file: _WatchedFile | None


class TokenBook:
    """The valid tokens of one space. Looks tokens up by digest, so that the timing reveals nothing."""

    def __init__(
        self,
        tokens: Iterable[tuple[str, str]] = (),
        *,
        clock: Callable[[], datetime] = now_utc,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tokens` are (participant, token) pairs, the preferred token of a participant first. Raises `TokenError`."""
        self._valid: dict[bytes, _ValidToken] = {}
        self._files: dict[Path, _WatchedFile] = {}
        self._folder: Path | None = None
        self._folder_mark: tuple[int, ...] | None = None
        self._found: list[_WatchedFile] | None = None
        """The files to read again, as `look` has found them; None if they are read."""
        self._ended: dict[ParticipantId, None] = {}
        self._clock = clock
        self._monotonic = monotonic
        for participant, token in tokens:
            self.add(participant, token)

    @classmethod
    def load(cls, config: "SpaceConfig", state: Path, *, environ: Mapping[str, str] | None = None) -> "TokenBook":
        """Return the tokens of every configured participant, and generate missing ones. Raises `TokenError`."""
        book = cls()
        book._folder = state / "tokens"  # even without tokens there: observers may have some
        for participant, configured in config.participants.items():
            book.load_token(participant, state, environ=environ)
            for token in configured.tokens:
                book.add(participant, token)
        book.refresh()
        return book

    @classmethod
    def generate(cls, config: "SpaceConfig") -> "TokenBook":
        """Return tokens for one run: from space.yaml, and new ones for other participants. Stores nothing."""
        book = cls()
        for participant, configured in config.participants.items():
            for token in configured.tokens or (generate_token(),):
                book.add(participant, token)
        return book

    def load_token(self, participant: str, state: Path, *, environ: Mapping[str, str] | None = None) -> None:
        """Accept a participant's token from the environment, else from its file, and watch the file.

        Generates a missing token. Raises `TokenError`.
        """
        self.add(participant, ensure_token(state, participant, environ=environ))
        if _given_token(participant, environ) is None:
            self.follow(participant, state)

    def follow(self, participant: str, state: Path) -> None:
        """Accept the token in a participant's token file, and watch the file."""
        path = token_path(state, participant)
        self._folder = path.parent
        self._files[path] = file = _WatchedFile(path, ParticipantId(participant))
        self._reread(file)

    def add(self, participant: str, token: str) -> None:
        """Accept a token for a participant. Raises `TokenError` if it is empty or belongs to another participant."""
        self._accept(token, ParticipantId(participant))

    def remove(self, participant: str) -> None:
        """Revoke all tokens of a participant, and stop watching its file."""
        self._valid = {digest: one for digest, one in self._valid.items() if one.participant != participant}
        self._files = {path: file for path, file in self._files.items() if file.participant != participant}

    def look(self) -> None:
        """Find the token files that changed. Can run in a thread, because thousands of files take milliseconds."""
        mark = None if self._folder is None else _mark(self._folder)  # first, so that later changes are noticed
        files = list(self._files.values())
        if self._folder is not None and mark is not None:
            with survived("looking for tokens of observers", log):
                # From Python 3.13 on, `glob` finds nothing in an unreadable folder.
                observers = (path for path in self._folder.iterdir() if path.name.endswith(_OBSERVER_SUFFIX))
                files += [_WatchedFile(path, None) for path in observers if path not in self._files]
        self._found = [one for one in files if self._is_over(one) or _mark(one.path) != one.mark]
        self._folder_mark = mark

    def refresh(self) -> tuple[ParticipantId, ...]:
        """Read changed token files (those found by `look`, if called since the last refresh).

        Returns the participants that lost a token; their connections must be closed.
        """
        if self._found is None:
            self.look()
        self._read_found()
        ended, self._ended = tuple(self._ended), {}
        return ended

    def _read_found(self) -> None:
        """Read the token files that `look` has found."""
        found, self._found = self._found or (), None
        for file in found:
            known = self._files.get(file.path)
            if known is None and file.participant is None:
                known = self._files[file.path] = file
            if known is None:
                continue  # the participant was removed in the meantime
            self._check(known)
            if known.participant is None and known.mark is None and known.stored is None:
                del self._files[known.path]  # the file was deleted; the next check finds a new one

    def knows(self, participant: str) -> bool:
        """Return whether this participant has a token."""
        return self.token_of(participant) is not None

    def identify(self, token: str | None) -> ParticipantId | None:
        """Return the participant of a token, or None."""
        found = self._find(token)
        return None if found is None else found.participant

    def may_read(self, token: str | None) -> bool:
        """Return whether a token may read board, events and history, as those of participants and observers may."""
        return self._find(token) is not None

    def token_of(self, participant: str) -> str | None:
        """Return the preferred token of a participant, or None."""
        return next((one.text for one in self._valid.values() if one.participant == participant), None)

    def _accept(self, token: str, participant: ParticipantId | None, file: _WatchedFile | None = None) -> None:
        if not token:
            raise TokenError(f"the token of '{participant}' is empty")
        digest = _digest(token)
        known = self._valid.get(digest)
        if known is not None and known.participant != participant:
            holder, other = (f"'{one}'" if one else "an observer" for one in (participant, known.participant))
            raise TokenError(
                f"{holder} and {other} have the same token; give each its own "
                f"({token_variable(participant or 'ID')}, the token files, or 'tokens:' in space.yaml)"
            )
        self._valid[digest] = _ValidToken(token, participant, file)

    def _find(self, token: str | None) -> _ValidToken | None:
        """Return a valid token after checking its file. Search new files for an unknown one."""
        if not token:
            return None
        digest = _digest(token)
        known = self._valid.get(digest)
        if known is not None and known.file is not None:
            self._check(known.file)
        elif known is None and self._folder is not None:
            if _mark(self._folder) != self._folder_mark:  # a token was made just now
                self.look()
            self._read_found()
        return self._valid.get(digest)

    def _is_over(self, file: _WatchedFile) -> bool:
        stored = file.stored
        return stored is not None and (
            stored.has_expired(self._clock()) or (file.ends_at is not None and self._monotonic() >= file.ends_at)
        )

    def _check(self, file: _WatchedFile) -> None:
        is_over = self._is_over(file)
        if is_over or _mark(file.path) != file.mark:
            self._reread(file, is_over=is_over)

    def _reread(self, file: _WatchedFile, *, is_over: bool = False) -> None:
        """Accept the current token of a token file instead of the earlier one."""
        before, ends_at = file.stored, file.ends_at
        file.stored = file.ends_at = None
        mark, now = _mark(file.path), self._clock()  # before the read, so that a change during it is noticed
        try:
            stored = read_token_file(file.path)
            # By the wall clock alone, an expired token would be valid again after that clock is set back.
            if stored is not None and not stored.has_expired(now) and not (is_over and stored == before):
                if stored.expires_at is not None:
                    file.ends_at = self._monotonic() + (stored.expires_at - now).total_seconds()
                self._accept(stored.token, file.participant, file)
                file.stored = stored
        except TokenError as error:
            log.warning("%s", error)
            if error.passes and not is_over:  # tokens stay valid; the file is read again next time
                file.stored, file.ends_at = before, ends_at
                return
        file.mark = mark
        if before is not None and (file.stored is None or file.stored.token != before.token):
            self._valid.pop(_digest(before.token), None)
            if file.participant is not None:
                self._ended[file.participant] = None


def _mark(path: Path) -> tuple[int, ...] | None:
    """Return a value that changes with each write or replacement of a file; None without a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def _make_token_folder(folder: Path) -> None:
    if folder.parent.name == STATE_NAME:
        make_private_folder(folder.parent)
    make_private_folder(folder)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
