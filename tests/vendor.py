"""Renews the files that the dashboard takes from npm, with the licences of all that they contain.

`python -m tests.vendor` writes them as published, after comparing the archive with the digest in the registry. The
version is the one named here.
"""

import base64
import hashlib
import io
import json
import tarfile
import urllib.request
from pathlib import Path
from typing import Any, Final

VENDOR: Final = Path(__file__).parents[1] / "spaces" / "mew_spaces" / "dashboard" / "vendor"
REGISTRY: Final = "https://registry.npmjs.org"
PACKAGE: Final = "markdown-it"
VERSION: Final = "15.0.3"
FILE: Final = "dist/browser/markdown-it.esm.min.mjs"


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return bytes(answer.read())


def _describe(name: str, version: str) -> dict[str, Any]:
    described: dict[str, Any] = json.loads(_read(f"{REGISTRY}/{name}/{version}"))
    return described


def _unpack(described: dict[str, Any]) -> dict[str, bytes]:
    """Return the files of a published package by their path. Raises ValueError if it is not what the registry says."""
    archive = _read(described["dist"]["tarball"])
    digest = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if digest != described["dist"]["integrity"]:
        raise ValueError(f"{described['name']}: the archive has the digest {digest}, not the published one")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        members = [(one, files.extractfile(one)) for one in files.getmembers() if one.isfile()]
        return {one.name.partition("/")[2]: content.read() for one, content in members if content is not None}


def _licence(described: dict[str, Any], files: dict[str, bytes]) -> str:
    names = [name for name in files if "/" not in name and name.upper().startswith("LICEN")]
    texts = "\n".join(files[name].decode().strip() for name in sorted(names))
    return f"{described['name']} {described['version']} ({described['license']})\n\n{texts}\n"


def main() -> None:
    """Write the file and `LICENSES.txt`. The file contains the packages that its package depends on."""
    described = _describe(PACKAGE, VERSION)
    files = _unpack(described)
    licences = [_licence(described, files)]
    for name, wanted in sorted(described.get("dependencies", {}).items()):
        if name == "argparse":
            continue  # only its program for terminals needs it
        inner = _describe(name, wanted.lstrip("^~"))
        licences.append(_licence(inner, _unpack(inner)))
    VENDOR.mkdir(exist_ok=True)
    (VENDOR / Path(FILE).name).write_bytes(files[FILE])
    (VENDOR / "LICENSES.txt").write_text(f"\n{'-' * 80}\n\n".join(licences), encoding="utf-8")


if __name__ == "__main__":
    main()
