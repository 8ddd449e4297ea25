"""[pure] The tokenizer family of a model, by its name. Does not know tokenizers or servers."""

import re
from typing import Literal

Family = Literal["llama3", "llama2", "mistral", "gpt", "unknown"]
MistralVocabulary = Literal["tekken", "sentencepiece"]

_FAMILIES: tuple[tuple[Family, tuple[str, ...]], ...] = (
    ("llama3", ("llama-3", "llama3")),
    ("llama2", ("llama-2", "llama2")),
    ("mistral", ("mistral", "mixtral")),
    ("gpt", ("gpt",)),
)

_SENTENCEPIECE_MODELS = re.compile(r"mixtral|mistral-?7b|mistral-large-2402|mistral-medium-2312")
"""Mistral models from before the Tekken vocabulary (2024)."""


def family_of(model_name: str) -> Family:
    """The family of a model by its name, ignoring case; the first match wins. Names can be wrong."""
    name = model_name.lower()
    for family, marks in _FAMILIES:
        if any(mark in name for mark in marks):
            return family
    return "unknown"


def mistral_vocabulary_of(model_name: str) -> MistralVocabulary:
    """The kind of vocabulary of a Mistral model: SentencePiece for the oldest ones, else Tekken."""
    return "sentencepiece" if _SENTENCEPIECE_MODELS.search(model_name.lower()) else "tekken"
