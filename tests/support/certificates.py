"""Certificates for tests: an authority, and files as a gateway reads them."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from mew_spaces.gateway.certificate import TlsFiles


@dataclass(frozen=True)
class Certified:
    """A certificate with its key, and the authority that signed it."""

    files: TlsFiles
    ca_file: Path


def certified(folder: Path, *names: str, days: int = 1) -> Certified:
    """A new certificate for these hosts that is valid for so many days; negative: it expired so many days ago."""
    authority = trustme.CA()
    issued = authority.issue_cert(
        *(names or ("127.0.0.1", "localhost")),
        not_before=datetime.now(UTC) - timedelta(days=30),
        not_after=datetime.now(UTC) + timedelta(days=days),
    )
    files = TlsFiles(folder / "cert.pem", folder / "key.pem")
    files.cert.write_bytes(b"".join(one.bytes() for one in issued.cert_chain_pems))
    files.key.write_bytes(issued.private_key_pem.bytes())
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    return Certified(files, folder / "ca.pem")
