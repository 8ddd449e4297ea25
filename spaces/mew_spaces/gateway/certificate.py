"""The certificate of a gateway with TLS.

Finds its files, and explains unusable ones. Clients decide about trust.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

from mew_spaces.config.settings import SpaceConfig
from mew_spaces.errors import SpacesError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files with the gateway's certificate (followed by its intermediates) and its private key."""

    cert: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Return a server's context for TLS 1.2 and 1.3. Raises `SpacesError` naming the invalid file."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        for file in (self.cert, self.key):
            try:
                file.read_bytes()
            except OSError as error:
                raise SpacesError(f"{file}: cannot be read: {error.strerror or error}") from None
        try:
            context.load_cert_chain(self.cert, self.key, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", None)
            if reason == "KEY_VALUES_MISMATCH":
                raise SpacesError(f"{self.key}: is not the private key of {self.cert}") from None
            raise SpacesError(f"{self.cert}, {self.key}: expected a certificate and its private key in PEM") from None
        return context


def _no_password() -> bytes:
    """Refuse an encrypted key: without this function OpenSSL would ask at the terminal."""
    raise ValueError("encrypted")


def tls_files(config: SpaceConfig, folder: Path) -> TlsFiles | None:
    """Return the certificate and key configured in a space.yaml of this folder, if any."""
    options = config.gateway
    if options.tls_cert is None or options.tls_key is None:
        return None
    return TlsFiles(folder / options.tls_cert, folder / options.tls_key)
