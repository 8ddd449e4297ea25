"""How large the texts of a conversation are: their features, and what the model's tokenizer counts where there is one.

Owns that a long text is weighed in a worker thread, so that an answer of many megabytes stops nothing else, and that
a counter is loaded once, in a thread too. It knows texts only, no history: whoever asks has to look whether the text
still matters when the answer comes.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import anyio
import anyio.to_thread

from mew_agent.tokens.projection import Calibration, Units, features
from mew_agent.tokens.tokenizers import TextCounter

T = TypeVar("T")

logger = logging.getLogger("mew_agent.tokens.sizes")

INLINE_CHARS = 10_000
"""Up to here weighing takes a few milliseconds and a thread would not be worth it."""


def no_counter() -> TextCounter | None:
    """For a conversation whose texts nobody counts."""
    return None


@dataclass(frozen=True, slots=True)
class Size:
    """Of one text: its features, and its tokens as counted (None: nobody did)."""

    units: Units
    counted_tokens: int | None = None

    def tokens(self, calibration: Calibration) -> int:
        """Tokens it will probably take, without a template's overhead; a count only while counts fit the model."""
        if self.counted_tokens is None or not calibration.counts_fit:
            return calibration.project(self.units, messages=0)
        return self.counted_tokens


class Sizes:
    """See the module. `load` is called once, in a thread, and gives the counter or None."""

    def __init__(self, load: Callable[[], TextCounter | None] = no_counter) -> None:
        self._load = load
        self._is_loaded = load is no_counter
        self._counter: TextCounter | None = None
        self._lock = anyio.Lock()

    async def load(self) -> None:
        """Get the counter, if there is one and it is not there yet. Raises its `ConfigError`."""
        async with self._lock:
            if not self._is_loaded:
                self._counter = await anyio.to_thread.run_sync(self._load)
                self._is_loaded = True

    async def measure(self, text: str) -> Size:
        """The size of a text. Raises a `ConfigError` only where `load` was never called and fails now."""
        if not self._is_loaded:
            await self.load()
        return self._weigh(text) if len(text) <= INLINE_CHARS else await in_thread(lambda: self._weigh(text))

    async def counts(self, texts: Mapping[int, str]) -> dict[int, int]:
        """What the tokenizer counts in each of many texts, under the same keys; empty without one."""
        if not self._is_loaded:
            await self.load()
        if self._counter is None or not texts:
            return {}
        counted = await in_thread(lambda: {key: self.count(text) for key, text in texts.items()})
        return {key: tokens for key, tokens in counted.items() if tokens is not None}

    def count(self, text: str) -> int | None:
        """The tokens of a short text, at once; None without a tokenizer. One that fails is not asked again."""
        if self._counter is None:
            return None
        try:
            return self._counter.count(text)
        except Exception:  # a library's own classes; figures can do without it
            logger.exception("the tokenizer '%s' failed: texts are projected from features", self._counter.name)
            self._counter = None
            return None

    def project(self, text: str, calibration: Calibration) -> int:
        """Tokens of a text at once; for long ones use it in a thread."""
        return self._weigh(text).tokens(calibration)

    def _weigh(self, text: str) -> Size:
        return Size(features(text), self.count(text))


async def in_thread(work: Callable[[], T]) -> T:
    """Do work of some milliseconds or more in a thread; it is never left half done by a cancellation."""
    done: list[T] = []
    with anyio.CancelScope(shield=True):
        done.append(await anyio.to_thread.run_sync(work))
    return done[0]
