"""The only module that imports `tiktoken`: builds an encoding from the user's rank file, without downloads."""

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import tiktoken
import tiktoken_ext.openai_public as definitions

RANK_FILES: Final = {
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d": "o200k_base",
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7": "cl100k_base",
}
"""Encodings by the SHA-256 of their rank file, which the library checks too."""


def encoding_of(path: Path, known: Mapping[str, str] = RANK_FILES) -> Any:
    """The `tiktoken.Encoding` of a rank file. Raises `ValueError` if the file is not one of the `known`."""
    content = path.read_bytes()
    name = known.get(hashlib.sha256(content).hexdigest())
    if name is None:
        raise ValueError(f"its SHA-256 is not that of {' or '.join(known.values())}")
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, content.splitlines())}

    def read_ranks(_url: str, **_: object) -> dict[bytes, int]:
        return ranks

    # The library's own definition of the encoding, with our reader in place of the one that downloads.
    define = FunctionType(getattr(definitions, name).__code__, {**vars(definitions), "load_tiktoken_bpe": read_ranks})
    return tiktoken.Encoding(**define())
