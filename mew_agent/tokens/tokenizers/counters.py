"""Token counters, one per family, each in an optional extra.

Owns where a family's vocabulary comes from; a missing one is a `ConfigError` that names the extra or the file, never
a download. Loading takes some tenths of a second and counting some milliseconds per 100,000 characters, so callers
use a worker thread. A counter knows texts only, not messages or chat templates.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Protocol

from mew_agent.errors import ConfigError
from mew_agent.tokens.projection import pieces_of
from mew_agent.tokens.tokenizers.family import Family, mistral_vocabulary_of

Extra = Literal["tokenizers-gpt", "tokenizers-mistral", "tokenizers-llama"]

OPTION = "tokenizer_file"

RANK_FILE = "a file o200k_base.tiktoken or cl100k_base.tiktoken"
MISTRAL_FILE = "a Tekken .json or a SentencePiece model"
LLAMA_FILE = "the model's tokenizer.json"

MOST_CHARS = 200_000
"""Longest text a tokenizer gets at once: some fail or crash on millions of characters without a space."""


class TextCounter(Protocol):
    """Counts the tokens of a text. Never fails: half characters and marks of special tokens count as text.

    A text of more than 200,000 characters is counted in pieces. Pieces that end between words change nothing; other
    cuts, and vocabularies that add a space at the start, change at most a few tokens a piece.
    """

    @property
    def name(self) -> str:
        """Name of the vocabulary, for example `o200k_base`."""
        ...

    def count(self, text: str) -> int:
        """Tokens of `text` alone, without those that begin or end a prompt."""
        ...


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """Model name and vocabulary file.

    `file` is a rank file for gpt models (`o200k_base.tiktoken` or `cl100k_base.tiktoken`), the `tokenizer.json` of the
    model for llama models, and a replacement for the extra's vocabulary for mistral models.
    """

    model: str = ""
    file: Path | None = None


def counter_for(family: Family, settings: TokenizerSettings) -> TextCounter | None:
    """The counter of a family; None for an unknown family.

    Raises `ConfigError` if the extra is not installed, or the file is missing or invalid.
    """
    match family:
        case "gpt":
            return _gpt(settings)
        case "mistral":
            return _mistral(settings)
        case "llama2" | "llama3":
            return _llama(settings)
        case "unknown":
            return None


def refuse_missing(family: Family, settings: TokenizerSettings) -> None:
    """Raise the `ConfigError` of `counter_for` if an extra or a file is missing. Loads nothing."""
    match family:
        case "gpt":
            _existing(settings.file, "tokenizers-gpt", "tiktoken", RANK_FILE)
        case "mistral":
            _require("mistral_common", "tokenizers-mistral")
            if settings.file is not None:
                _existing(settings.file, "tokenizers-mistral", "mistral_common", MISTRAL_FILE)
        case "llama2" | "llama3":
            _existing(settings.file, "tokenizers-llama", "tokenizers", LLAMA_FILE)
        case "unknown":
            return


@dataclass(frozen=True, slots=True)
class _Counter:
    """A counter from any function that returns the number of tokens of a text."""

    name: str
    measure: Callable[[str], int]

    def count(self, text: str) -> int:
        # Tokenizers written in Rust reject half characters (lone surrogates).
        sound = text if text.isascii() else text.encode("utf-8", "replace").decode()
        return sum(map(self.measure, pieces_of(sound, MOST_CHARS)))


def _gpt(settings: TokenizerSettings) -> TextCounter:
    path = _existing(settings.file, "tokenizers-gpt", "tiktoken", RANK_FILE)
    try:
        from mew_agent.tokens.tokenizers.gpt import encoding_of

        encoding = encoding_of(path)
    except Exception as error:  # the libraries raise classes of their own and bare ones
        raise _unreadable(path, error, RANK_FILE) from error
    return _Counter(str(encoding.name), lambda text: len(encoding.encode_ordinary(text)))


def _mistral(settings: TokenizerSettings) -> TextCounter:
    _require("mistral_common", "tokenizers-mistral")
    from mew_agent.tokens.tokenizers.mistral import encoder_of, packaged_vocabulary

    path = settings.file or packaged_vocabulary(mistral_vocabulary_of(settings.model))
    path = _existing(path, "tokenizers-mistral", "mistral_common", MISTRAL_FILE)
    try:
        encode = encoder_of(path)
    except Exception as error:  # as above
        raise _unreadable(path, error, MISTRAL_FILE) from error
    return _Counter(path.name, lambda text: len(encode(text)))


def _llama(settings: TokenizerSettings) -> TextCounter:
    path = _existing(settings.file, "tokenizers-llama", "tokenizers", LLAMA_FILE)
    try:
        from mew_agent.tokens.tokenizers.llama import measure_of

        measure = measure_of(path)
    except Exception as error:  # as above
        raise _unreadable(path, error, LLAMA_FILE) from error
    return _Counter(path.name, measure)


def _existing(path: Path | None, extra: Extra, package: str, expected: str) -> Path:
    _require(package, extra)
    if path is None:
        raise ConfigError(OPTION, f"no vocabulary: '{extra}' contains none, and none is ever downloaded", expected)
    if not path.is_file():
        raise ConfigError(OPTION, f"file not found: {path}", expected)
    return path


def _require(package: str, extra: Extra) -> None:
    if find_spec(package) is None:
        raise ConfigError("tokenizer", f"'{package}' is not installed", f"pip install 'mew-agent[{extra}]'")


def _unreadable(path: Path, error: Exception, expected: str) -> ConfigError:
    return ConfigError(str(path), f"cannot be used: {error}", expected)
