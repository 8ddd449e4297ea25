"""Optional exact tokenizers: the family of a model, and a counter for it.

Never uses the network: vocabularies come with an installed extra or are the user's files.
"""

from mew_agent.tokens.tokenizers.choice import chosen_counter, refuse_unavailable
from mew_agent.tokens.tokenizers.counters import TextCounter, TokenizerSettings, counter_for
from mew_agent.tokens.tokenizers.family import Family, family_of

__all__ = [
    "Family",
    "TextCounter",
    "TokenizerSettings",
    "chosen_counter",
    "counter_for",
    "family_of",
    "refuse_unavailable",
]
