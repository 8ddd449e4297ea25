"""Chooses an agent's token counter: the configured one, else one for its model's name, else none.

Owns when a missing counter is an error and when texts are projected from features instead, and the log lines. Loads
vocabularies, so call it in a worker thread.
"""

import logging
from typing import Final

from mew_protocol.agent_settings import TokenizerChoice

from mew_agent.errors import ConfigError
from mew_agent.tokens.tokenizers.counters import OPTION, TextCounter, TokenizerSettings, counter_for, refuse_missing
from mew_agent.tokens.tokenizers.family import Family, family_of

logger = logging.getLogger("mew_agent.tokens.tokenizers")

FALLBACK: Final = "projecting texts from features instead"


def chosen_counter(wanted: TokenizerChoice, settings: TokenizerSettings) -> TextCounter | None:
    """The counter to use; None if texts are projected from features, with one log line that says why.

    Raises `ConfigError` if a family is configured by name and its extra or its file is missing.
    """
    match wanted:
        case "off":
            return None
        case "auto":
            return _counter_if_any(family_of(settings.model), settings)
        case family:
            return _logged(family, counter_for(family, settings))


def refuse_unavailable(wanted: TokenizerChoice, settings: TokenizerSettings) -> None:
    """Raise the `ConfigError` of `chosen_counter` as far as it shows without loading a vocabulary."""
    match wanted:
        case "auto" | "off":
            return
        case family:
            refuse_missing(family, settings)


def _counter_if_any(family: Family, settings: TokenizerSettings) -> TextCounter | None:
    # A user who configured a file expects it to be used; others need not know about tokenizers.
    level = logging.INFO if settings.file is None else logging.WARNING
    try:
        counter = counter_for(family, settings)
    except ConfigError as error:
        logger.log(level, "no tokenizer for '%s' (%s): %s", settings.model, error, FALLBACK)
        return None
    if counter is None and settings.file is not None:
        logger.warning(
            "%s %s is not used, because the family of '%s' is unknown (set `tokenizer` to a family): %s",
            OPTION, settings.file, settings.model, FALLBACK,
        )  # fmt: skip
    return _logged(family, counter)


def _logged(family: Family, counter: TextCounter | None) -> TextCounter | None:
    if counter is not None:
        logger.info("counting tokens with the tokenizer of %s (%s)", family, counter.name)
    return counter
