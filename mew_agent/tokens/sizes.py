"""Measures texts: their features, and token counts if the model has a tokenizer. Measures long texts in a thread."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import anyio
import anyio.to_thread

from mew_agent.tokens.projection import Calibration, Units, features
from mew_agent.tokens.tokenizers import TextCounter

logger = logging.getLogger("mew_agent.tokens.sizes")

INLINE_CHARS = 10_000  # shorter texts take a few milliseconds, so a thread is not worth it


SizeBasis = Literal["tokenizer", "projected", "heuristic"]


@dataclass(frozen=True, slots=True)
class Size:
    """The size of one text: its features, and its tokens if a tokenizer counted them."""

    units: Units
    counted_tokens: int | None = None

    def tokens(self, calibration: Calibration) -> int:
        """Project the tokens of the text, without the template's overhead. Uses a count only if counts have proved
        right.
        """
        if self.counted_tokens is None or not calibration.counts_fit:
            return calibration.project(self.units, messages=0)
        return self.counted_tokens


class GivenSize(Size):
    """A given number of tokens."""

    def tokens(self, calibration: Calibration) -> int:
        """Return the given number."""
        return self.counted_tokens or 0


class Sizes:
    """Measures texts. `load` returns the tokenizer's counter or None; it is called once, in a thread."""

    def __init__(self, load: Callable[[], TextCounter | None] | None = None) -> None:
        self._load = load
        """None once it is loaded."""
        self._counter: TextCounter | None = None
        self._lock = anyio.Lock()

    async def load(self) -> None:
        """Load the counter unless it is loaded. Raises its `ConfigError`."""
        async with self._lock:
            if self._load is not None:
                self._counter = await anyio.to_thread.run_sync(self._load)
                self._load = None

    async def measure(self, text: str) -> Size:
        """Measure a text. Raises `ConfigError` only if the counter is loaded now and that fails."""
        if self._load is not None:
            await self.load()
        if len(text) <= INLINE_CHARS:
            return self._measure(text)
        return await anyio.to_thread.run_sync(self._measure, text)

    async def counts(self, texts: Mapping[int, str]) -> dict[int, int]:
        """Count the tokens of many texts by key; empty without a tokenizer."""
        await self.load()
        if self._counter is None or not texts:
            return {}
        counted = await anyio.to_thread.run_sync(lambda: {key: self.count(text) for key, text in texts.items()})
        return {key: tokens for key, tokens in counted.items() if tokens is not None}

    def count(self, text: str) -> int | None:
        """Count the tokens of a short text; None without a tokenizer. A failed tokenizer is not used again."""
        if self._counter is None:
            return None
        try:
            return self._counter.count(text)
        except Exception:  # libraries raise their own classes, and projections work without counts
            logger.exception("tokenizer '%s' failed; projecting texts from features", self._counter.name)
            self._counter = None
            return None

    def project(self, text: str, calibration: Calibration) -> int:
        """Project the tokens of a text. For long texts, call it in a thread."""
        return self._measure(text).tokens(calibration)

    def _measure(self, text: str) -> Size:
        return Size(features(text), None if self._counter is None else self.count(text))


def basis_of(sizes: Sequence[Size], calibration: Calibration) -> SizeBasis:
    """Return how the tokens of texts are known."""
    if sizes and calibration.counts_fit and all(size.counted_tokens is not None for size in sizes):
        return "tokenizer"
    return "projected" if calibration.weights is not None else "heuristic"
