"""Which counter an agent gets: by what it is told, else by its model's name, else none.

Owns when a counter that cannot be had is an error and when texts are projected from features instead, and what is
said then. It loads what it finds, so call it in a worker thread.
"""

import logging
from typing import Final

from mew_protocol.agent_settings import TokenizerChoice

from mew_agent.errors import ConfigError
from mew_agent.tokens.tokenizers.counters import OPTION, TextCounter, TokenizerSettings, counter_for, refuse_missing
from mew_agent.tokens.tokenizers.family import Family, family_of

logger = logging.getLogger("mew_agent.tokens.tokenizers")

INSTEAD: Final = "texts are projected from features instead"


def chosen_counter(wanted: TokenizerChoice, settings: TokenizerSettings) -> TextCounter | None:
    """The counter to use; None: texts are projected from features, and the log says why, once.

    Raises `ConfigError` where a family was asked for by name and cannot be counted: its extra or its file is missing.
    """
    match wanted:
        case "off":
            return None
        case "auto":
            return _counter_if_any(family_of(settings.model), settings)
        case family:
            return _told(family, counter_for(family, settings))


def refuse_unavailable(wanted: TokenizerChoice, settings: TokenizerSettings) -> None:
    """Raise the `ConfigError` of `chosen_counter`, without loading anything, as far as it can be told that way."""
    match wanted:
        case "auto" | "off":
            return
        case family:
            refuse_missing(family, settings)


def _counter_if_any(family: Family, settings: TokenizerSettings) -> TextCounter | None:
    # Somebody who named a file expects it to be used; nobody else has to know that there are tokenizers.
    level = logging.INFO if settings.file is None else logging.WARNING
    try:
        counter = counter_for(family, settings)
    except ConfigError as error:
        logger.log(level, "the tokens of '%s' are not counted (%s): %s", settings.model, error, INSTEAD)
        return None
    if counter is None and settings.file is not None:
        logger.warning(
            "%s %s is not used, since the name '%s' tells no family that it could be of (`tokenizer` names one): %s",
            OPTION, settings.file, settings.model, INSTEAD,
        )  # fmt: skip
    return _told(family, counter)


def _told(family: Family, counter: TextCounter | None) -> TextCounter | None:
    if counter is not None:
        logger.info("tokens are counted by the tokenizer of %s (%s)", family, counter.name)
    return counter
