"""Measures whether reading hostile text takes time linear in its length, in CPU time of this thread."""

import math
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

PUMPS = (
    *(" ", "\n", "\t", "\r\n", "\x00", "\x1b[", "'", '"', "`", "```\n", "(", ")", "[", "]", "{", "}", "<", ">", "</"),
    *("“", "”", "„", "«", "「", "*", "**a ", "_", "#", "# ", "-", "- ", "> ", "|", "~", "=", ":", ";", ",", ".", "..."),
    *("/", "\\", "?", "!", "$", "&", "@", "0", "1,", "a", "A", "aA", "a ", "a\n", "a.", "a-", "a/", "1.a ", "e\u0301"),
    *(
        "\u0301",
        "\u0301\u0316",
        "\u200d",
        "字",
        "字。",
        "\ud800",
        " \n",
        "\n ",
        "key: ",
        "if ",
        "http://",
        "data: {}\n\n",
    ),
)
"""What hostile texts repeat."""

PREFIXES = ("a", '"', "<a")

_SCREENED = 128
"""Repetitions at which all attacks are compared."""

_TOO_LONG_SECONDS = 0.3
"""Ends a run, because an exponential cost would not end. In linear time no text that is measured takes this long."""

_ATTEMPTS = 3
"""A run is too long if it is so each time: the timer can also count a pause of the whole machine."""

_FEWEST = 32
"""Repetitions at which the costliest attacks are measured first; then at four times as many, and so on."""

_MAX_REPETITIONS = 100_000
_RATIO = 7.0
"""Four times the length costs four times as much, and less than this with noise and logarithms; quadratic is 16."""

_SHORT_SECONDS, _LONG_SECONDS = 0.0008, 0.0025


@dataclass(frozen=True)
class Attack:
    """A text that is a prefix, any number of repetitions, and an end."""

    prefix: str
    pump: str
    end: str

    def text(self, repetitions: int) -> str:
        return f"{self.prefix}{self.pump * repetitions}{self.end}"


@cache
def general_attacks() -> tuple[Attack, ...]:
    """The attacks on every function."""
    return tuple(Attack(prefix, pump, "!") for prefix in ("", "a", "<a") for pump in PUMPS)


def attacks_on(pattern: str) -> Iterator[Attack]:
    """Yield the attacks on a regular expression: fragments of its own source besides the general ones."""
    words = re.findall(r"[^\W_]{2,}", re.sub(r"\\[A-Za-z]", " ", pattern))
    marks = re.findall(r"[^\w\s]+", re.sub(r"\\[A-Za-z]|[][?*+|()^$\\{}]", " ", pattern))
    whole = re.findall(r"[^\s\\()\[\]{}|?*+^$.]{3,}", pattern)
    own = list(dict.fromkeys([*words, *marks, *whole]))[:8]
    for pump in dict.fromkeys([*PUMPS, *own, *(f"{one} " for one in own), *(f"-{one}" for one in own)]):
        yield from (Attack("", pump, end) for end in ("", "!"))
        yield from (Attack(prefix, pump, "!") for prefix in PREFIXES)
    for prefix in own:
        for pump in (" ", "\n", "a", "1", "-", ".", '"', ",", "a "):
            yield Attack(prefix, pump, "!")
            yield Attack(f"{prefix}a", pump, "!")
            yield Attack("", f"{prefix}{pump}", "!")


class _TooLong(BaseException):
    """A run reached its bound. No `except Exception` of the measured code takes it."""


def superlinear_attack(run: Callable[[str], object], attacks: Iterable[Attack], *, finalists: int = 3) -> str | None:
    """Return how the cost of `run` grows under the worst attack if that is above linear; None if no attack is."""
    screened: list[tuple[float, Attack]] = []
    for attack in attacks:
        text = attack.text(_SCREENED)
        seconds = _cost(run, text)
        if seconds == math.inf:
            return f"{attack}: {_SCREENED} repetitions cost more than {_TOO_LONG_SECONDS} s"
        screened.append((seconds / len(text), attack))
    screened.sort(key=lambda one: -one[0])
    return next(filter(None, (growth(run, attack.text, str(attack)) for _, attack in screened[:finalists])), None)


def growth(run: Callable[[Any], object], make: Callable[[int], Any], name: str, *, first: int = _FEWEST) -> str | None:
    """Return a description if four times the size costs more than about four times the time; None if it is linear."""
    size, before = first, 0.0
    while size < _MAX_REPETITIONS:
        whole = make(size)
        seconds = _cost(run, whole)
        if _LONG_SECONDS < seconds <= _RATIO * before:
            return None  # and a second run, which takes longest at this size, would show no more
        seconds = min(seconds, _cost(run, whole))
        if before and seconds > max(_SHORT_SECONDS, _RATIO * before):
            small, large = (min(_cost(run, one) for _ in range(7)) for one in (make(size // 4), whole))
            # What is quadratic up to a bound is linear beyond it.
            if large > _RATIO * small and min(_cost(run, make(4 * size)) for _ in range(3)) > _RATIO * large:
                return f"{name}: {size // 4} cost {small * 1e3:.2f} ms, {size} cost {large * 1e3:.2f} ms"
        if before and seconds > _LONG_SECONDS:
            return None
        size, before = 4 * size, seconds
    return None


def _cost(run: Callable[[Any], object], given: Any) -> float:
    """Return the seconds of one run; infinity if it reached its bound."""
    _end_long_runs()
    for _ in range(_ATTEMPTS):
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, _TOO_LONG_SECONDS)
            begun = time.thread_time()
            run(given)
            return time.thread_time() - begun
        except _TooLong:
            pass
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return math.inf


@cache
def _end_long_runs() -> None:
    def end(_number: int, _frame: object) -> None:
        raise _TooLong

    signal.signal(signal.SIGVTALRM, end)
