"""Optional exact tokenizers: the table of families, and the choice of one.

Entry points of the group `mew_agent.tokenizers` name a `Tokenizer`, which counts text. Owns the choice and its errors.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Protocol

from mew_settings.installation import install_command
from mew_settings.plugins import load_table

from mew_agent.errors import ConfigError, unknown_name

logger = logging.getLogger("mew_agent.tokens.tokenizers")

TABLE: Final = "mew_agent.tokenizers"
OPTION: Final = "tokenizer_file"
AUTO, OFF = "auto", "off"  # values of the setting `tokenizer`, in addition to the names of the table

_FALLBACK: Final = "projecting texts from features instead"


class TextCounter(Protocol):
    """Counts the tokens of a text. Never fails: lone surrogates and marks of special tokens count as text.

    Counts texts of more than 200,000 characters in pieces. Cuts between words change nothing; other cuts, and
    vocabularies that add a space at the start, change at most a few tokens per piece.
    """

    @property
    def name(self) -> str:
        """Name of the vocabulary, for example `o200k_base`."""

    def count(self, text: str) -> int:
        """Count only the tokens of `text`, without those at the start and end of a prompt."""


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """Model name and vocabulary file."""

    model: str = ""
    file: Path | None = None  # replaces the extra's vocabulary for mistral models; the others need one


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """The tokenizer of one family of models."""

    package: str  # the required library
    extra: str  # extra of mew-agent that installs the library
    reads: str  # the vocabulary file, in words
    load: Callable[[Path | None, str], TextCounter]
    """Returns the counter for a vocabulary file and a model name. Raises the library's errors."""
    marks: tuple[str, ...] = ()  # parts of the names of its models
    has_vocabulary: bool = False  # whether the library includes one, so that no file is needed
    precedence: int = 0  # the family with the highest one counts if a name has marks of several


@cache
def tokenizers() -> Mapping[str, Tokenizer]:
    """Return all tokenizers by name."""
    return load_table(TABLE)


def family_of(model_name: str) -> str | None:
    """Return the name of the tokenizer that a model's name suggests, ignoring case; None if unknown."""
    name = model_name.lower()
    by_precedence = sorted(tokenizers().items(), key=lambda entry: -entry[1].precedence)
    return next((family for family, one in by_precedence if any(mark in name for mark in one.marks)), None)


def chosen_counter(wanted: str, settings: TokenizerSettings) -> TextCounter | None:
    """Return the counter to use; None if texts are projected from features; logs the reason in one line.

    Raises `ConfigError` if a family is configured by name and its extra or its file is missing.
    """
    if wanted == OFF:
        return None
    family = family_of(settings.model) if wanted == AUTO else wanted
    if family is None:
        if settings.file is not None:
            text = "%s %s is not used, because the family of '%s' is unknown (set `tokenizer` to a family): %s"
            logger.warning(text, OPTION, settings.file, settings.model, _FALLBACK)
        return None
    try:
        counter = counter_for(family, settings)
    except ConfigError as error:
        if wanted != AUTO:
            raise
        # A user who configured a file expects its use; others need not know about tokenizers.
        level = logging.INFO if settings.file is None else logging.WARNING
        logger.log(level, "no tokenizer for '%s' (%s): %s", settings.model, error, _FALLBACK)
        return None
    logger.info("counting tokens with the tokenizer of %s (%s)", family, counter.name)
    return counter


def refuse_unavailable(wanted: str, settings: TokenizerSettings) -> None:
    """Raise the `ConfigError` of `chosen_counter` that can be found without loading a vocabulary."""
    if wanted not in (AUTO, OFF):
        _checked_file(wanted, settings.file)


def counter_for(family: str, settings: TokenizerSettings) -> TextCounter:
    """Return the counter of a family. Raises `ConfigError` if its extra or file is unusable."""
    path = _checked_file(family, settings.file)
    try:
        return tokenizers()[family].load(path, settings.model)
    except Exception as error:  # the libraries raise their own classes and bare ones
        raise ConfigError(str(path or family), f"cannot be used: {error}", tokenizers()[family].reads) from error


def _checked_file(family: str, path: Path | None) -> Path | None:
    if family not in tokenizers():
        raise unknown_name("tokenizer", f"unknown tokenizer '{family}'", family, (AUTO, OFF, *tokenizers()))
    one = tokenizers()[family]
    if find_spec(one.package) is None:
        install = install_command(one.extra)
        raise ConfigError("tokenizer", f"'{one.package}' is not installed; install it with `{install}`")
    if path is None and not one.has_vocabulary:
        raise ConfigError(OPTION, f"no vocabulary: '{one.extra}' contains none, and none is ever downloaded", one.reads)
    if path is not None and not path.is_file():
        raise ConfigError(OPTION, f"file not found: {path}", one.reads)
    return path
