"""[pure] The supported part of JSONPath in capability keys: `$`, `.name`, `['name']`, `[0]`, `[*]`, `.*`, `..`.

Filters, slices and scripts are not supported: a path with one raises `Undecidable`, so the capability denies.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mew_protocol.patterns import STEPS_PER_VALUE, Steps, Undecidable

_STEP = re.compile(
    r"(?P<deep>\.\.)?(?:\.?(?P<name>[^.\[\]*'\"$@?()]+)|\.?(?P<star>\*)|\[(?:(?P<index>\d{1,9})|(?P<all>\*)"
    r"|'(?P<single>[^']*)'|\"(?P<double>[^\"]*)\")\])"
)


class _Step(NamedTuple):
    key: str | int | None
    """None selects every child."""
    deep: bool


def compile_path(path: str) -> Callable[[object, Steps], Iterator[object]]:
    """Return a function that yields the values selected by a path; the path begins with `$`.

    Raises `Undecidable`. So does the function, if the search is too expensive.
    """
    steps: list[_Step] = []
    place = 1
    while place < len(path):
        found = _STEP.match(path, place)
        if found is None or found.end() == place:
            raise Undecidable(f"'{path}' is an unsupported JSONPath at character {place}")
        steps.append(_Step(_key(found), found["deep"] is not None))
        place = found.end()
    return lambda value, budget: _follow(value, tuple(steps), budget)


def descendants(value: object, budget: Steps) -> Iterator[object]:
    """Yield a value and everything inside it. Raises `Undecidable`."""
    budget.spend(STEPS_PER_VALUE)
    yield value
    for child in _children(value):
        yield from descendants(child, budget)


def _key(found: re.Match[str]) -> str | int | None:
    if found["index"] is not None:
        return int(found["index"])
    return next((found[group] for group in ("name", "single", "double") if found[group] is not None), None)


def _follow(value: object, steps: tuple[_Step, ...], budget: Steps) -> Iterator[object]:
    budget.spend(STEPS_PER_VALUE)
    if not steps:
        yield value
        return
    step, rest = steps[0], steps[1:]
    for start in descendants(value, budget) if step.deep else (value,):
        for child in _select(start, step.key):
            yield from _follow(child, rest, budget)


def _select(value: object, key: str | int | None) -> Iterator[object]:
    if key is None:
        yield from _children(value)
    elif isinstance(key, int):
        if isinstance(value, list | tuple) and key < len(value):
            yield value[key]
    elif isinstance(value, dict) and key in value:
        yield value[key]


def _children(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value
