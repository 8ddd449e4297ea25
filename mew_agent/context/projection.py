"""[pure] How many tokens a text will probably take, from counts of its features.

Used only for the part of a prompt that no provider has reported yet, and always labelled. A feature count tracks
what kind of text it is (prose, digits, base64, Chinese), which no number of characters per token can; the factor
k, learnt per model from reported prompts, absorbs the rest. Weights and errors: docs/context-accounting.md.
"""

import re
from dataclasses import dataclass, replace

MESSAGE_OVERHEAD_TOKENS = 4
"""What a chat template puts around one message; 2 to 6 among the templates measured."""

_K_MIN, _K_MAX = 0.33, 3.0
_UNSEEN_TOKENS = 64
_DECAY = 0.9
_MIN_OBSERVED_FEATURES = 8.0

_WORDS = re.compile(r"[A-Za-z]+")
_DIGITS = re.compile(r"[0-9]")
_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]+")
_WHITESPACE = re.compile(r"\s+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_NON_ASCII = re.compile(r"[^\x00-\x7f]+")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\u3000-\u303f]")
_CASE_FLIP = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[a-z])")
_USUAL_WORD_LETTERS = 7
_WHITESPACE_IN_ONE_TOKEN = 32


def features(text: str) -> float:
    """Weigh what a byte-pair tokenizer splits at. Unit: tokens of a typical 200k vocabulary, before factor k."""
    total = 0.0
    for word in _WORDS.findall(text):
        letters = len(word)
        if letters > 3 and not word.islower() and len(_CASE_FLIP.findall(word)) * 3 > letters:
            total += 0.96 * letters
        else:
            total += 0.90 + 0.30 * max(0, letters - _USUAL_WORD_LETTERS)
    total += 0.62 * len(_DIGITS.findall(text))
    for run in _PUNCTUATION.findall(text):
        total += 0.73 + 0.28 * (len(run) - 1)
    for run in _WHITESPACE.findall(text):
        if run != " ":
            total += 1.08 + len(run) // _WHITESPACE_IN_ONE_TOKEN
    total += len(_CONTROL.findall(text))
    for run in _NON_ASCII.findall(text):
        cjk = len(_CJK.findall(run))
        total += 0.78 * cjk + 0.96 * 0.8 * (len(run) - cjk)
    return total


@dataclass(frozen=True, slots=True)
class Calibration:
    """The factor k of one model: decayed sums of what was observed over what the features said."""

    observed: float = 0.0
    counted: float = 0.0

    @property
    def k(self) -> float:
        """Tokens per feature unit; 1 until something was observed."""
        if self.counted < _MIN_OBSERVED_FEATURES:
            return 1.0
        return min(_K_MAX, max(_K_MIN, self.observed / self.counted))

    def observe(self, tokens: float, feature_units: float) -> "Calibration":
        """Learn from a stretch of text whose tokens were reported.

        What no tokenizer does (a server left something out, or put something in) counts as the nearest that one does.
        """
        if tokens <= 0 or feature_units < _MIN_OBSERVED_FEATURES:
            return self
        tokens = min(_K_MAX * feature_units, max(_K_MIN * feature_units, tokens))
        return replace(self, observed=self.observed * _DECAY + tokens, counted=self.counted * _DECAY + feature_units)

    def project(self, feature_units: float, messages: int = 1) -> int:
        """Tokens that so many feature units in so many messages will probably take."""
        return round(self.k * feature_units) + MESSAGE_OVERHEAD_TOKENS * messages


def most_tokens(feature_units: float) -> int:
    """No visible text of so many feature units takes more tokens; a count above it counted something unseen."""
    return round(_K_MAX * feature_units) + _UNSEEN_TOKENS
