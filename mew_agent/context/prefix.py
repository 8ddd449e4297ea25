"""[pure] The parts of a request before its history: system prompt, tools, reminders, response format.

Owns how the size of the whole is divided. Does not know how large the whole is; see `ledger`.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from mew_protocol.payloads.participant import MAX_PREFIX_PARTS, PrefixPart

from mew_agent.context.intervals import divide
from mew_agent.tokens.projection import Calibration, features

_NAME_CHARS = 200


class PrefixText(NamedTuple):
    """One text of a prefix; tools have a name."""

    part: Literal["system_prompt", "tool", "reminders", "response_format"]
    text: str
    name: str | None = None


def prefix_parts(
    texts: Sequence[PrefixText], tokens: int, calibration: Calibration, count: Callable[[str], int | None]
) -> tuple[PrefixPart, ...]:
    """Divide the `tokens` of a prefix among its texts; the parts sum to it.

    The smallest tools of many are summed up. A text of 100,000 characters takes some milliseconds.
    """
    texts = [one for one in texts if one.text]
    sizes = [_size(one, calibration, count) for one in texts]
    are_counted = [is_counted for _, is_counted in sizes]
    shares, keeps_counts = divide(tokens, [size for size, _ in sizes], are_counted)
    parts: list[PrefixPart] = []
    for one, share, is_counted in zip(texts, shares, are_counted, strict=True):
        name = None if one.name is None else one.name[:_NAME_CHARS]
        basis: Literal["tokenizer", "projected"] = "tokenizer" if is_counted and keeps_counts else "projected"
        parts.append(PrefixPart(part=one.part, name=name, tokens=share, basis=basis))
    others = [one for one in parts if one.part != "tool"]
    tools = _largest([one for one in parts if one.part == "tool"], MAX_PREFIX_PARTS - len(others))
    return (*others[:1], *tools, *others[1:])


def _largest(tools: Sequence[PrefixPart], most: int) -> list[PrefixPart]:
    """Return the tools, largest first; if there are more than `most`, the smallest are summed up in one part."""
    tools = sorted(tools, key=lambda one: -one.tokens)
    if len(tools) <= most:
        return tools
    smaller = tools[most - 1 :]
    tokens = sum(one.tokens for one in smaller)
    return [*tools[: most - 1], PrefixPart(part="other_tools", count=len(smaller), tokens=tokens, basis="projected")]


def _size(one: PrefixText, calibration: Calibration, count: Callable[[str], int | None]) -> tuple[int, bool]:
    """Return the likely size of a text in a prompt, and whether a trusted tokenizer counted it as it is sent."""
    counted = count(one.text) if calibration.counts_fit else None
    if counted is None:
        return calibration.project(features(one.text), messages=0), False
    # Each server formats tools in its own way, so only the count of a text that is sent unchanged is right.
    return counted, one.part in ("system_prompt", "reminders")
