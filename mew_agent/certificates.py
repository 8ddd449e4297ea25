"""The certificates of gateways that clients trust, and the reasons for rejecting one.

Opens no connection. Clients of other servers use `client_options`.
"""

import os
import ssl
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from mew_agent.errors import CertificateRejected, ConfigError, NotConnected

CA_VARIABLE: Final = "MEW_CA_FILE"
"""Environment variable with a PEM file of certificates to trust in addition to those of the system. `SSL_CERT_FILE`
replaces those of the system, and so decides about model providers too."""

_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
_OTHER_HOST: Final = (62, 64)
"""Numbers of OpenSSL (`X509_V_ERR_...`). All others mean that no trusted authority signed this one."""

_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE")


def trust(ca_file: str | Path | None = None) -> ssl.SSLContext:
    """Return a context that accepts the system's certificates and those in `ca_file` or `MEW_CA_FILE`.

    The file may hold a certificate authority or the gateway's own certificate, so a self-signed one needs no authority.
    Raises `ConfigError` if it cannot be read.
    """
    context = ssl.create_default_context()
    chosen = ca_file or os.environ.get(CA_VARIABLE)
    if chosen:
        where = "ca_file" if ca_file else CA_VARIABLE
        try:
            context.load_verify_locations(cafile=chosen)
        except ssl.SSLError:  # before OSError, its base class
            raise ConfigError(where, f"{chosen} contains no certificate", "a PEM file") from None
        except OSError as error:
            raise ConfigError(where, f"{chosen} cannot be read: {error.strerror or error}") from None
        # Trusts a named certificate without its authority; the default only since Python 3.13.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def tls_failure(gateway: str, error: Exception) -> CertificateRejected | NotConnected | None:
    """Return the cause of a failed TLS handshake in plain words; None if TLS is not the cause."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return CertificateRejected(gateway, *_rejection(error, urlsplit(gateway).hostname or ""))
    if isinstance(error, ssl.SSLError) and error.reason in _NOT_TLS:
        return NotConnected(gateway, "this port serves no TLS; try ws:// or http://")
    return None


def _rejection(error: ssl.SSLCertVerificationError, host: str) -> tuple[str, str]:
    """Return the problem with a certificate, and the advice."""
    if error.verify_code == _EXPIRED:
        return "has expired", "renew it on the gateway, or check this machine's clock"
    if error.verify_code == _NOT_YET_VALID:
        return "is not valid yet", "check the clocks of both machines"
    if error.verify_code in _OTHER_HOST:
        return f"is for another host than {host}", "connect to a name that it contains, or add this name to it"
    reason = error.verify_message.removesuffix(" certificate")
    return (
        f"is not trusted ({reason})",
        f"set {CA_VARIABLE} to a PEM file with this certificate, or with the authority that signed it",
    )
