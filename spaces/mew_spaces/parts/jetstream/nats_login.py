"""Credentials of a connection to a NATS server, from the files in `backplane` of space.yaml.

Reads the files at each connection, because credentials are renewed. Explains invalid files. Does not connect.
"""

import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import nkeys
from nats.aio.client import RawCredentials

from mew_spaces.parts.jetstream.backplane import BackplaneRefused
from mew_spaces.parts.jetstream.backplane_setting import JetStreamOptions

_JWT: Final = re.compile(r"-BEGIN NATS USER JWT-+\r?\n\S+\r?\n-")
_SEED: Final = re.compile(r"-BEGIN USER NKEY SEED-+\r?\n(\S+)\r?\n-")


class NatsLogin:
    """The credentials and certificates of one gateway."""

    def __init__(self, options: JetStreamOptions, folder: Path, token: str | None) -> None:
        """`folder` is the space's folder, `token` an embedded server's token."""
        self._options = options
        self._folder = folder
        self._token = token

    def arguments(self, server: str, check_encryption: Callable[[], None]) -> dict[str, Any]:
        """Return arguments of `Client.connect`. Raises `BackplaneRefused` for an unusable file.

        `check_encryption` raises if the connection has no TLS.
        """
        options = self._options
        must_encrypt = server.startswith("tls://") or options.needs_tls

        def secret(text: str | None) -> Callable[[], str] | None:
            def read() -> str:
                if must_encrypt:
                    check_encryption()
                return text or ""

            return None if text is None else read

        return {
            "tls": self._tls() if must_encrypt else None,
            "user": options.user,
            "password": secret(self._read(options.password_file) if options.password_file else None),
            "token": secret(self._read(options.token_file) if options.token_file else self._token),
            "user_credentials": RawCredentials(self._credentials(options.credentials)) if options.credentials else None,
        }

    @property
    def hint(self) -> str:
        """The settings to check when a server refuses these credentials."""
        options = self._options
        given = [key for key in ("credentials", "token_file", "user", "password_file") if getattr(options, key)]
        return f"; check {' and '.join(given) or 'credentials, token_file or user'} of 'backplane' in space.yaml"

    def _tls(self) -> ssl.SSLContext:
        options = self._options
        names = [
            None if one is None else self._path(one) for one in (options.tls_ca, options.tls_cert, options.tls_key)
        ]
        try:
            context = ssl.create_default_context(cafile=names[0])
            if names[1] is not None:
                context.load_cert_chain(names[1], names[2])
        except (OSError, ssl.SSLError) as error:
            shown = ", ".join(filter(None, names))
            raise BackplaneRefused(f"certificates for NATS cannot be used: {shown}: {error}") from None
        return context

    def _path(self, name: str) -> str:
        path = self._folder / name
        if not path.is_file():
            raise BackplaneRefused(f"{path}: no such file; 'backplane' in space.yaml names it")
        return str(path)

    def _read(self, name: str) -> str:
        path = self._path(name)
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise BackplaneRefused(f"{path}: cannot be read: {error}") from None

    def _credentials(self, name: str) -> str:
        """Read and check a credentials file, because `nats-py` would read one without a JWT forever."""
        text = self._read(name)
        seed = _SEED.search(text)
        try:
            if seed is None or _JWT.search(text) is None:
                raise ValueError("a section is missing")
            nkeys.from_seed(seed[1].encode())
        except (ValueError, nkeys.NkeysError) as error:
            problem = f"no NATS credentials ({error}); expected the sections NATS USER JWT and USER NKEY SEED"
            raise BackplaneRefused(f"{self._folder / name}: {problem}") from None
        return text
