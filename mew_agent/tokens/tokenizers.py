"""Optional exact tokenizers: the family of a model, a counter for it, and which one an agent uses.

Never uses the network: vocabularies come with an installed extra or are the user's files. Loading takes some tenths of
a second and counting some milliseconds per 100,000 characters, so callers use a worker thread.
"""

import base64
import hashlib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any, Final, Literal, Protocol

from mew_agent.errors import ConfigError
from mew_agent.settings import TokenizerChoice
from mew_agent.tokens.projection import pieces_of

logger = logging.getLogger("mew_agent.tokens.tokenizers")

Family = Literal["llama3", "llama2", "mistral", "gpt"]

OPTION: Final = "tokenizer_file"
MOST_CHARS: Final = 200_000
"""Longest text a tokenizer gets at once: some fail or crash on millions of characters without a space."""

RANK_FILES: Final = {
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d": "o200k_base",
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7": "cl100k_base",
}
"""Encodings by the SHA-256 of their rank file, which the library checks too."""

_FALLBACK: Final = "projecting texts from features instead"
_MARKS: Final[Mapping[Family, tuple[str, ...]]] = {
    "llama3": ("llama-3", "llama3"),
    "llama2": ("llama-2", "llama2"),
    "mistral": ("mistral", "mixtral"),
    "gpt": ("gpt",),
}
# Mistral models from before the Tekken vocabulary (2024).
_SENTENCEPIECE_MODELS: Final = re.compile(r"mixtral|mistral-?7b|mistral-large-2402|mistral-medium-2312")
_LLAMA: Final = ("tokenizers", "tokenizers-llama", "the model's tokenizer.json")
_NEEDS: Final[Mapping[Family, tuple[str, str, str]]] = {
    "gpt": ("tiktoken", "tokenizers-gpt", "a file o200k_base.tiktoken or cl100k_base.tiktoken"),
    "mistral": ("mistral_common", "tokenizers-mistral", "a Tekken .json or a SentencePiece model"),
    "llama2": _LLAMA,
    "llama3": _LLAMA,
}
"""For each family: the package, the extra that installs it, and the file it reads."""


class TextCounter(Protocol):
    """Counts the tokens of a text. Never fails: half characters and marks of special tokens count as text.

    A text of more than 200,000 characters is counted in pieces. Pieces that end between words change nothing; other
    cuts, and vocabularies that add a space at the start, change at most a few tokens a piece.
    """

    @property
    def name(self) -> str:
        """Name of the vocabulary, for example `o200k_base`."""

    def count(self, text: str) -> int:
        """Count the tokens of `text` alone, without those that begin or end a prompt."""


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """Model name and vocabulary file."""

    model: str = ""
    file: Path | None = None  # replaces the extra's vocabulary for mistral models; the others need one


def family_of(model_name: str) -> Family | None:
    """Return the family that a model's name suggests, ignoring case; None if unknown. The first match wins."""
    name = model_name.lower()
    return next((family for family, marks in _MARKS.items() if any(mark in name for mark in marks)), None)


def mistral_vocabulary(model_name: str) -> str:
    """Return the packaged vocabulary of a Mistral model: SentencePiece for the oldest ones, else Tekken."""
    is_old = _SENTENCEPIECE_MODELS.search(model_name.lower())
    return "mistral_instruct_tokenizer_240323.model.v3" if is_old else "tekken_240911.json"


def chosen_counter(wanted: TokenizerChoice, settings: TokenizerSettings) -> TextCounter | None:
    """Return the counter to use; None if texts are projected from features, with one log line that says why.

    Raises `ConfigError` if a family is configured by name and its extra or its file is missing.
    """
    if wanted == "off":
        return None
    family = family_of(settings.model) if wanted == "auto" else wanted
    if family is None:
        if settings.file is not None:
            text = "%s %s is not used, because the family of '%s' is unknown (set `tokenizer` to a family): %s"
            logger.warning(text, OPTION, settings.file, settings.model, _FALLBACK)
        return None
    try:
        counter = counter_for(family, settings)
    except ConfigError as error:
        if wanted != "auto":
            raise
        # A user who configured a file expects it to be used; others need not know about tokenizers.
        level = logging.INFO if settings.file is None else logging.WARNING
        logger.log(level, "no tokenizer for '%s' (%s): %s", settings.model, error, _FALLBACK)
        return None
    logger.info("counting tokens with the tokenizer of %s (%s)", family, counter.name)
    return counter


def refuse_unavailable(wanted: TokenizerChoice, settings: TokenizerSettings) -> None:
    """Raise the `ConfigError` of `chosen_counter` as far as it shows without loading a vocabulary."""
    if wanted != "auto" and wanted != "off":
        _checked_file(wanted, settings.file)


def counter_for(family: Family, settings: TokenizerSettings) -> TextCounter:
    """Return the counter of a family. Raises `ConfigError` if its extra or file is unusable."""
    path = _checked_file(family, settings.file)
    try:
        return _LOADERS[family](path, settings.model)
    except Exception as error:  # the libraries raise their own classes and bare ones
        raise ConfigError(str(path or family), f"cannot be used: {error}", _NEEDS[family][2]) from error


def _checked_file(family: Family, path: Path | None) -> Path | None:
    package, extra, expected = _NEEDS[family]
    if find_spec(package) is None:
        raise ConfigError("tokenizer", f"'{package}' is not installed", f"pip install 'mew-agent[{extra}]'")
    if path is None and family != "mistral":
        raise ConfigError(OPTION, f"no vocabulary: '{extra}' contains none, and none is ever downloaded", expected)
    if path is not None and not path.is_file():
        raise ConfigError(OPTION, f"file not found: {path}", expected)
    return path


@dataclass(frozen=True, slots=True)
class _Counter:
    """A counter from any function that returns the tokens of a text."""

    name: str
    encode: Callable[[str], Any]

    def count(self, text: str) -> int:
        # Tokenizers written in Rust reject half characters (lone surrogates).
        sound = text if text.isascii() else text.encode("utf-8", "replace").decode()
        return sum(len(self.encode(piece)) for piece in pieces_of(sound, MOST_CHARS))


def _load_gpt(path: Path | None, _model: str) -> _Counter:
    assert path is not None
    encoding = encoding_of(path)
    return _Counter(str(encoding.name), encoding.encode_ordinary)


def encoding_of(path: Path, known: Mapping[str, str] = RANK_FILES) -> Any:
    """Return the `tiktoken.Encoding` of a rank file. Raises `ValueError` if the file is not one of the `known`."""
    import tiktoken
    import tiktoken_ext.openai_public as definitions

    content = path.read_bytes()
    name = known.get(hashlib.sha256(content).hexdigest())
    if name is None:
        raise ValueError(f"its SHA-256 is not that of {' or '.join(known.values())}")
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, content.splitlines())}

    # The library's own definition of the encoding, with our reader in place of the one that downloads, without a
    # timeout, and deletes a file of the user whose hash it does not know.
    reader = {"load_tiktoken_bpe": lambda _url, **_: ranks}
    define = FunctionType(getattr(definitions, name).__code__, {**vars(definitions), **reader})
    return tiktoken.Encoding(**define())


def _load_mistral(path: Path | None, model: str) -> _Counter:
    from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    path = path or Path(str(files("mistral_common") / "data" / mistral_vocabulary(model)))
    vocabulary = Tekkenizer.from_file(path) if path.suffix == ".json" else SentencePieceTokenizer(path)
    return _Counter(path.name, lambda text: vocabulary.encode(text, bos=False, eos=False))


def _load_llama(path: Path | None, _model: str) -> _Counter:
    from tokenizers import Tokenizer

    assert path is not None
    tokenizer = Tokenizer.from_file(str(path))
    # Marks of special tokens within a text are text.
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return _Counter(path.name, lambda text: tokenizer.encode(text, add_special_tokens=False))


_LOADERS: Final[Mapping[Family, Callable[[Path | None, str], _Counter]]] = {
    "gpt": _load_gpt,
    "mistral": _load_mistral,
    "llama2": _load_llama,
    "llama3": _load_llama,
}
