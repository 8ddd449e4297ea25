"""[pure] Projects the tokens of a text from counts of its features.

Used only for the unreported part of a prompt, and always labelled. Features distinguish kinds of text (prose, digits,
base64, Chinese), which a fixed number of characters per token cannot. Learns per model from reported prompts: the
factor k, the weight of each feature (one tokenizer takes a token for each digit, another for three), and, if a
tokenizer counted all texts of an interval, the chat template's overhead per message. How it works and how to change it:
docs/explanation/estimator.md.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations_with_replacement, starmap
from math import sqrt
from operator import add, itemgetter, mul, sub
from typing import Final, NamedTuple

MESSAGE_OVERHEAD_TOKENS = 4
"""Assumed overhead of a chat template per message until it is learnt; measured templates have 2 to 6."""

MOST_OVERHEAD_TOKENS = 48
"""Upper bound of a template's overhead per message, including the wrapping of calls and results."""

PIECE_CHARS: Final = 50_000  # longer texts are weighed in pieces of this size, a few milliseconds of work each

WHOLE_PROMPT_NOISE = 6.0
"""Noise of a whole prompt relative to an interval: templates write tools in ways that clients cannot see."""

_WEIGHTS: Final = (0.90, 0.30, 0.62, 0.73, 0.28, 1.08, 0.78, 0.96, 0.96 * 0.8, 1.0)
"""Tokens of a typical 200k vocabulary for one of each feature: word, letter after the seventh, digit, run of
punctuation, mark after its first, run of white space, Chinese, Japanese or Korean character, letter of a random-case
word, other non-ASCII character, control character or 32 more blanks."""

STEPS = 100  # the displayed figure of a reply changes with each hundredth of the window
_OPEN_CHARS, _MAX_OPEN_CHARS = 400, 600

_K_MIN, _K_MAX = 0.33, 3.0
_UNSEEN_TOKENS = 64
_DECAY = 0.9
_MIN_OBSERVED_FEATURES = 8.0

_SPREAD, _COMMON_SPREAD = 0.4, 0.4
_DRIFT = 0.02
_NOISE, _NOISE_TOKENS = 0.05, 4.0
_SURPRISE = 3.0
_MISS_TOKENS, _MISS_DECAY = 64, 0.8
"""Assumptions of the estimator. Each weight is within 40 % of the typical one, and all of them together within 40 %;
weights may drift by 2 % a call. The tokens of a text are within 5 % plus 4 tokens of its features; more than three
deviations count as three. Halving or doubling any of these hardly changes the errors."""

_WORDS = re.compile(r"[A-Za-z]+")
_DIGITS = re.compile(r"[0-9]")
_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]+")
_WHITESPACE = re.compile(r"\s+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_NON_ASCII = re.compile(r"[^\x00-\x7f]+")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\u3000-\u303f]")
_CASE_FLIP = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[a-z])")
_WORD_BEGINS = re.compile(r"(?<![ \t\n\r\f\v])[ ](?=[A-Za-z])")
_SEARCHED_CHARS = 1000
_USUAL_WORD_LETTERS = 7
_WHITESPACE_IN_ONE_TOKEN = 32


class Units(float):
    """Feature units: tokens of a typical vocabulary, with the feature counts they come from.

    Sums and differences keep the counts, so that a whole interval can train each feature's weight. A plain number works
    too, but trains less.
    """

    __slots__ = ("counts",)
    counts: tuple[float, ...]
    """Whole numbers, but floats: products of an integer and a float are slower."""

    @classmethod
    def from_counts(cls, counts: Iterable[float]) -> "Units":
        """Units from feature counts, in the order of the weights."""
        kept = tuple(map(float, counts))
        units = cls(_weigh(_WEIGHTS, kept))
        units.counts = kept
        return units

    def __add__(self, other: float) -> float:
        if isinstance(other, Units):
            units = Units(float(self) + float(other))
            units.counts = tuple(map(add, self.counts, other.counts))
            return units
        return float(self) + other if other else self

    def __radd__(self, other: float) -> float:
        return other + float(self) if other else self

    def __sub__(self, other: float) -> float:
        if isinstance(other, Units):
            return Units.from_counts(map(sub, self.counts, other.counts))
        return float(self) - other if other else self


def features(text: str) -> Units:
    """Count the features of a text. Unit: tokens of a typical 200k vocabulary, before factor k."""
    if len(text) <= PIECE_CHARS:
        return Units.from_counts(_counts(text))
    # In pieces, so that other threads can run in between.
    return Units.from_counts(map(sum, zip(*map(_counts, pieces_of(text)), strict=True)))


def pieces_of(text: str, most_chars: int = PIECE_CHARS) -> Iterator[str]:
    """Split a text into pieces, before a word if possible, so that runs of characters stay whole."""
    start, end = 0, len(text)
    while end - start > most_chars:
        cut = start + most_chars
        words = [found.start() for found in _WORD_BEGINS.finditer(text, max(start + 1, cut - _SEARCHED_CHARS), cut)]
        cut = words[-1] if words else cut
        yield text[start:cut]
        start = cut
    yield text[start:]


def _counts(text: str) -> tuple[int, ...]:
    words = letters_past = random_case = blanks = long_blanks = cjk = others = 0
    for word in _WORDS.findall(text):
        letters = len(word)
        if letters > 3 and not word.islower() and len(_CASE_FLIP.findall(word)) * 3 > letters:
            random_case += letters
        else:
            words += 1
            letters_past += max(0, letters - _USUAL_WORD_LETTERS)
    punctuation = _PUNCTUATION.findall(text)
    marks_past = sum(map(len, punctuation)) - len(punctuation)
    for run in _WHITESPACE.findall(text):
        if run != " ":
            blanks += 1
            long_blanks += len(run) // _WHITESPACE_IN_ONE_TOKEN
    for run in _NON_ASCII.findall(text):
        inside = len(_CJK.findall(run))
        cjk += inside
        others += len(run) - inside
    digits, odd = len(_DIGITS.findall(text)), len(_CONTROL.findall(text)) + long_blanks
    return words, letters_past, digits, len(punctuation), marks_past, blanks, cjk, random_case, others, odd


class Calibration(NamedTuple):
    """The calibration of one model: the factor k, the feature weights, and the overhead per message."""

    observed: float = 0.0  # decayed sum of tokens
    counted: float = 0.0  # decayed sum of feature units; their ratio is k
    weights: tuple[float, ...] | None = None  # weights learnt by recursive least squares; None: the typical ones
    doubt: tuple[float, ...] | None = None  # covariance of the weights, row by row from the diagonal on
    learnt_overhead: float = MESSAGE_OVERHEAD_TOKENS  # the template's tokens per message
    wrapped: float = 0.0  # decayed number of messages that taught it
    count_miss: float = 0.0  # decayed errors, in tokens, of a tokenizer's counts
    feature_miss: float = 0.0  # decayed errors of the features on the same intervals
    counts_fit: bool = True  # whether to trust a tokenizer's counts: a wrong one soon has larger errors than features
    overhead_tokens: float = MESSAGE_OVERHEAD_TOKENS  # per message: the learnt overhead if counts are trusted

    @property
    def k(self) -> float:
        """Tokens per feature unit; 1 until something was observed."""
        if self.counted < _MIN_OBSERVED_FEATURES:
            return 1.0
        return _within(self.observed / self.counted, 1.0)

    def observe(self, tokens: float, feature_units: float, *, noise: float = 1.0) -> "Calibration":
        """Learn from text with a reported size. `noise` is the figure's noise relative to an interval."""
        if tokens <= 0 or feature_units < _MIN_OBSERVED_FEATURES:
            return self
        # A figure that no tokenizer produces shows that a server omitted or added something.
        tokens = _within(tokens, feature_units)
        weights, doubt = self.weights, self.doubt
        if isinstance(feature_units, Units):
            weights, doubt = self._updated_weights(tokens, feature_units.counts, noise)
        observed, counted = self.observed * _DECAY + tokens, self.counted * _DECAY + float(feature_units)
        return Calibration(observed, counted, weights, doubt, *self[4:])

    def observe_counted(self, tokens: int, counted_tokens: int, messages: int, projected_tokens: int) -> "Calibration":
        """Learn the template's overhead from an interval of counted texts."""
        overhead, most = tokens - counted_tokens, MOST_OVERHEAD_TOKENS * messages
        possible = min(most, max(0, overhead))
        expected = self.learnt_overhead * messages if self.wrapped else possible
        faded = self.wrapped * _DECAY
        return self._replace(
            learnt_overhead=(self.learnt_overhead * faded + possible) / (faded + messages),
            wrapped=faded + messages,
            count_miss=self.count_miss * _MISS_DECAY + abs(overhead - expected),
            feature_miss=self.feature_miss * _MISS_DECAY + abs(tokens - projected_tokens),
        )._compared()

    def _compared(self) -> "Calibration":
        """Compare the errors of counts and of features."""
        fit = self.count_miss <= self.feature_miss + _MISS_TOKENS
        return self._replace(counts_fit=fit, overhead_tokens=self.learnt_overhead if fit else MESSAGE_OVERHEAD_TOKENS)

    def tokens(self, feature_units: float) -> float:
        """Return the tokens for these feature units, without message overhead."""
        if self.weights is not None and isinstance(feature_units, Units):
            return _weigh(self.weights, feature_units.counts)
        return self.k * feature_units

    def spread(self, feature_units: float) -> float:
        """Standard deviation of `tokens`: large for features that no report has trained."""
        if not isinstance(feature_units, Units):
            return 0.0
        counts = feature_units.counts
        return sqrt(max(0.0, _weigh(_covariance_with(counts, self.doubt or _FIRST_DOUBT), counts)))

    def project(self, feature_units: float, messages: int = 1) -> int:
        """Return the tokens for these feature units in this number of messages."""
        return round(self.tokens(feature_units) + self.overhead_tokens * messages)

    def wrap(self, text_tokens: int) -> int:
        """Return the tokens of a message with a text of this size."""
        return text_tokens + round(self.overhead_tokens)

    def saved(self) -> tuple[float, ...]:
        """Return the figures to store: sums, overhead, errors, then the learnt weights and their doubt, if any."""
        return (self.observed, self.counted, *self[4:8], *(self.weights or ()), *(self.doubt or ()))

    @classmethod
    def restored(cls, figures: Sequence[float]) -> "Calibration":
        """Restore from `saved`. Figures of another number of features are forgotten."""
        if len(figures) not in (2 + _BESIDE, 2 + _BESIDE + FEATURES + len(_PAIRS)):
            return cls()
        observed, counted, *rest = figures
        weights, doubt = tuple(rest[_BESIDE : _BESIDE + FEATURES]), tuple(rest[_BESIDE + FEATURES :])
        overhead, wrapped, count_miss, feature_miss = rest[:_BESIDE]
        sums = observed, counted, weights or None, doubt or None
        return cls(*sums, overhead, wrapped, count_miss, feature_miss)._compared()

    def _updated_weights(
        self, tokens: float, counts: Sequence[float], noise: float
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Weights and doubt after one interval. Runs after every call, so it uses C iterators where they are faster."""
        weights = self.weights or tuple([self.k * weight for weight in _WEIGHTS])
        doubt = self.doubt or _FIRST_DOUBT
        moves = _covariance_with(counts, doubt)
        error = tokens - _weigh(weights, counts)
        expected = _weigh(moves, counts) + (noise * _NOISE * tokens) ** 2 + _NOISE_TOKENS**2
        deviation = max(expected, (error / _SURPRISE) ** 2)
        step, root = error / deviation, sqrt(deviation)
        shares = [move / root for move in moves]
        left = list(map(sub, doubt, starmap(mul, combinations_with_replacement(shares, 2))))
        for at, first, fading in _FADING:
            if left[at] < first:
                left[at] += fading
        learnt = [
            new if low <= (new := weight + move * step) <= high else max(low, min(new, high))
            for weight, move, low, high in zip(weights, moves, _LEAST, _MOST, strict=False)
        ]
        return tuple(learnt), tuple(left)


class StreamProjection:
    """The size of one running call. Adding a piece takes constant time.

    `count` is the model's tokenizer, or returns None.
    """

    def __init__(
        self,
        prompt_tokens: int,
        limit_tokens: int | None,
        calibration: Calibration,
        count: Callable[[str], int | None] = lambda _text: None,
    ) -> None:
        self.likely_most_tokens = prompt_tokens
        """The size plus the likely error of its projected part, so that a reply is stopped in time."""
        self._prompt_tokens = prompt_tokens
        self._limit_tokens = limit_tokens
        self._calibration = calibration
        self._count = count if calibration.counts_fit else lambda _text: None
        self._closed_features = 0.0
        self._closed_counted = 0
        self._open_text = ""
        self._shown_step = -1

    def add(self, text: str) -> int:
        """Add a piece of the reply. Returns the tokens in the window, including the prompt."""
        self._open_text += text
        # Features and tokenizers work on whole words, so the text is split before a space. Some scripts have none.
        end = self._open_text.rfind(" ") if len(self._open_text) > _OPEN_CHARS else 0
        if end <= 0 and len(self._open_text) > _MAX_OPEN_CHARS:
            end = len(self._open_text)
        if end > 0:
            closed, self._open_text = self._open_text[:end], self._open_text[end:]
            self._closed_features += features(closed)
            self._closed_counted += self._count(closed) or 0
        counted = self._count(self._open_text)
        if counted is not None:
            self.likely_most_tokens = self._prompt_tokens + self._closed_counted + counted
            return self.likely_most_tokens
        units = self._closed_features + features(self._open_text)
        tokens = self._prompt_tokens + round(self._calibration.tokens(units))
        self.likely_most_tokens = tokens + round(self._calibration.spread(units))
        return tokens

    def restart(self, tokens: int) -> None:
        """Continue from the server's count of the whole window."""
        self._prompt_tokens = self.likely_most_tokens = tokens
        self._closed_features, self._closed_counted, self._open_text = 0.0, 0, ""

    def crosses_step(self, tokens: int) -> bool:
        """Return whether the figure reached the next percent of the window, and should be shown."""
        if self._limit_tokens is None:
            return False
        step = tokens * STEPS // self._limit_tokens
        if step == self._shown_step:
            return False
        self._shown_step = step
        return True


def most_tokens(feature_units: float) -> int:
    """Return an upper bound for a text's tokens; a larger count includes something else."""
    return round(_K_MAX * feature_units) + _UNSEEN_TOKENS


def _weigh(weights: Iterable[float], counts: Iterable[float]) -> float:
    return sum(map(mul, weights, counts), 0.0)


def _covariance_with(counts: Sequence[float], doubt: Sequence[float]) -> list[float]:
    """Return the covariance of each weight with the tokens of a text: the matrix times the counts, which are mostly
    0.
    """
    moves: list[float] = []
    for row, count in zip(_ROWS, counts, strict=True):
        if count and moves:
            moves = [move + one * count for move, one in zip(moves, row(doubt), strict=True)]
        elif count:
            moves = [one * count for one in row(doubt)]
    return moves


def _within(figure: float, typical: float) -> float:
    low, high = _K_MIN * typical, _K_MAX * typical
    return figure if low <= figure <= high else min(high, max(low, figure))


NO_UNITS: Final = features("")
FEATURES: Final = len(_WEIGHTS)
_BESIDE: Final = 4
_PAIRS: Final = tuple(combinations_with_replacement(range(FEATURES), 2))
"""Index pairs of the covariance, in the order of `doubt`."""

_FIRST_DOUBT: Final = tuple(
    _COMMON_SPREAD**2 * (_WEIGHTS[row] * _WEIGHTS[column]) + ((_SPREAD * _WEIGHTS[row]) ** 2 if row == column else 0.0)
    for row, column in _PAIRS
)

_ROWS: Final[tuple[Callable[[Sequence[float]], tuple[float, ...]], ...]] = tuple(
    itemgetter(*(_PAIRS.index((min(row, column), max(row, column))) for column in range(FEATURES)))
    for row in range(FEATURES)
)
"""Getters of whole rows of the covariance."""

_LEAST: Final = tuple(_K_MIN * weight for weight in _WEIGHTS)
_MOST: Final = tuple(_K_MAX * weight for weight in _WEIGHTS)

_FADING: Final = tuple(
    (_PAIRS.index((at, at)), _FIRST_DOUBT[_PAIRS.index((at, at))], (_DRIFT * weight) ** 2)
    for at, weight in enumerate(_WEIGHTS)
)
"""For each feature: its index in `doubt`, its initial variance, and the variance that each call adds, up to the
initial one."""
