"""Counters of tokens, one per family, each behind an extra of its own.

Owns where a family's vocabulary comes from and what is said when it is not there: a `ConfigError` that names the
extra or the file, never a download. Loading takes a few tenths of a second and counting some milliseconds per
100,000 characters, so callers do both in a worker thread. A counter knows texts only: no message, no chat template.
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
"""What a tokenizer is given at once: some give up, or crash, on millions of characters without a break."""


class TextCounter(Protocol):
    """Counts the tokens of a text. No text makes it fail: half characters and the marks of special tokens are text.

    A text of more than 200,000 characters is counted in pieces; between words that changes nothing, elsewhere, and for
    vocabularies that begin each text with a space of their own, at most a few tokens for each piece.
    """

    @property
    def name(self) -> str:
        """The vocabulary, for instance `o200k_base`."""
        ...

    def count(self, text: str) -> int:
        """Tokens of `text` alone, without any that begin or end a prompt."""
        ...


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """What the user says about tokenizers.

    `file` is for gpt models a rank file (`o200k_base.tiktoken` or `cl100k_base.tiktoken`), for llama models the
    model's `tokenizer.json`; for mistral models it takes the place of the vocabulary that the extra brings.
    """

    model: str = ""
    file: Path | None = None


def counter_for(family: Family, settings: TokenizerSettings) -> TextCounter | None:
    """The counter of a family; None for an unknown one, whose texts are projected from features.

    Raises `ConfigError` when the extra is not installed, or a file is missing, broken or not what it should be.
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
    """Raise the `ConfigError` of `counter_for` where an extra or a file is missing; loading shows what is broken."""
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
    """Any function from a text to its number of tokens."""

    name: str
    measure: Callable[[str], int]

    def count(self, text: str) -> int:
        # Tokenizers written in Rust refuse half characters (lone surrogates).
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
        raise ConfigError(OPTION, f"a vocabulary is never downloaded, and '{extra}' brings none", expected)
    if not path.is_file():
        raise ConfigError(OPTION, f"there is no file {path}", expected)
    return path


def _require(package: str, extra: Extra) -> None:
    if find_spec(package) is None:
        raise ConfigError("tokenizer", f"'{package}' is not installed", f"pip install 'mew-agent[{extra}]'")


def _unreadable(path: Path, error: Exception, expected: str) -> ConfigError:
    return ConfigError(str(path), f"cannot be used: {error}", expected)
