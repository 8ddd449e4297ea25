"""The tokenizers of four families of models, on libraries that the extras install.

Never uses the network: vocabularies come with an extra or from the user. Loading takes some tenths of a second and
counting some milliseconds per 100,000 characters, so callers use a worker thread.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import FunctionType
from typing import Any, Final

from mew_agent.tokens.projection import pieces_of
from mew_agent.tokens.tokenizers import Tokenizer

MOST_CHARS: Final = 200_000
"""Longest text a tokenizer gets at once: some fail or crash on millions of characters without a space."""

RANK_FILES: Final = {
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d": "o200k_base",
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7": "cl100k_base",
}
"""Encodings by the SHA-256 of their rank file, which the library checks too."""

# Mistral models before the Tekken vocabulary (2024).
_SENTENCEPIECE_MODELS: Final = re.compile(r"mixtral|mistral-?7b|mistral-large-2402|mistral-medium-2312")


@dataclass(frozen=True, slots=True)
class PieceCounter:
    """A counter from any function that returns the tokens of a text."""

    name: str
    encode: Callable[[str], Any]

    def count(self, text: str) -> int:
        # Tokenizers written in Rust reject half characters (lone surrogates).
        sound = text if text.isascii() else text.encode("utf-8", "replace").decode()
        return sum(len(self.encode(piece)) for piece in pieces_of(sound, MOST_CHARS))


def _load_gpt(path: Path | None, _model: str) -> PieceCounter:
    assert path is not None
    encoding = encoding_of(path)
    return PieceCounter(str(encoding.name), encoding.encode_ordinary)


def encoding_of(path: Path, known: Mapping[str, str] = RANK_FILES) -> Any:
    """Return the `tiktoken.Encoding` of a rank file. Raises `ValueError` if the file is not one of the `known`."""
    import tiktoken
    import tiktoken_ext.openai_public as definitions

    content = path.read_bytes()
    name = known.get(hashlib.sha256(content).hexdigest())
    if name is None:
        raise ValueError(f"its SHA-256 is not that of {' or '.join(known.values())}")
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, content.splitlines())}

    # The library's own definition of the encoding, with our reader in place of its own. Its reader has no other
    # parameter than a cache folder for the whole process. It downloads 3.6 MB without a timeout if a file is missing,
    # and deletes a user's file with an unknown hash.
    reader = {"load_tiktoken_bpe": lambda _url, **_: ranks}
    define = FunctionType(getattr(definitions, name).__code__, {**vars(definitions), **reader})
    return tiktoken.Encoding(**define())


def _load_mistral(path: Path | None, model: str) -> PieceCounter:
    from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    path = path or Path(str(files("mistral_common") / "data" / mistral_vocabulary(model)))
    vocabulary = Tekkenizer.from_file(path) if path.suffix == ".json" else SentencePieceTokenizer(path)
    return PieceCounter(path.name, lambda text: vocabulary.encode(text, bos=False, eos=False))


def _load_llama(path: Path | None, _model: str) -> PieceCounter:
    from tokenizers import Tokenizer

    assert path is not None
    tokenizer = Tokenizer.from_file(str(path))
    # Within a text, marks of special tokens are plain text.
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return PieceCounter(path.name, lambda text: tokenizer.encode(text, add_special_tokens=False))


def mistral_vocabulary(model_name: str) -> str:
    """Return the packaged vocabulary of a Mistral model: SentencePiece for the oldest ones, else Tekken."""
    is_old = _SENTENCEPIECE_MODELS.search(model_name.lower())
    return "mistral_instruct_tokenizer_240323.model.v3" if is_old else "tekken_240911.json"


_LLAMA: Final = ("tokenizers", "tokenizers-llama", "the model's tokenizer.json", _load_llama)

LLAMA3: Final = Tokenizer(*_LLAMA, marks=("llama-3", "llama3"), precedence=3)
LLAMA2: Final = Tokenizer(*_LLAMA, marks=("llama-2", "llama2"), precedence=2)
MISTRAL: Final = Tokenizer(
    "mistral_common",
    "tokenizers-mistral",
    "a Tekken .json or a SentencePiece model",
    _load_mistral,
    marks=("mistral", "mixtral"),
    has_vocabulary=True,
    precedence=1,
)
GPT: Final = Tokenizer(
    "tiktoken",
    "tokenizers-gpt",
    "a file o200k_base.tiktoken or cl100k_base.tiktoken",
    _load_gpt,
    marks=("gpt",),
)
