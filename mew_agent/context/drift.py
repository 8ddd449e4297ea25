"""[pure] How far a prediction was from the prompt that was then reported, and what follows from that.

Owns the bounds beyond which the books are moved, an interval is not believed, and a server is found to have left
something out. It keeps no books (see `ledger`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from mew_agent.context.measures import Measure
from mew_agent.tokens.projection import Calibration

DRIFT_TOLERANCE_TOKENS = 64
DRIFT_TOLERANCE_PERCENT = 2
DOUBT_TOKENS = 16
DOUBT_TOKENS_PER_ITEM = 4
DOUBT_SHARE = (1, 4)
"""An interval whose growth is further from its projection than all of these is not trusted to be the items alone:
a server that drops old messages shows only in the totals. The share is of what had to be projected in it."""

TRUNCATION_FALL = (4, 5)
"""A prompt below 4/5 of the previous one, with nothing cut, was shortened by the server."""


class Drift(NamedTuple):
    """What a call taught: predicted minus reported prompt tokens, and what follows from it."""

    tokens: int
    rebased: bool
    truncated_by_server: bool


def drift_of(predicted: int, reported: int, before: int, *, may_be_truncated: bool) -> Drift:
    """The drift of a reported prompt after one of `before` tokens.

    `may_be_truncated`: nothing on our side can have made the prompt fall.
    """
    tokens = predicted - reported
    bound = max(DRIFT_TOLERANCE_TOKENS, reported * DRIFT_TOLERANCE_PERCENT // 100)
    keep, whole = TRUNCATION_FALL
    return Drift(tokens, abs(tokens) > bound, may_be_truncated and reported * whole < before * keep)


def is_doubtful(drift_tokens: int, sent_now: Sequence[Measure], calibration: Calibration) -> bool:
    """Whether the growth of an interval may hold more, or less, than the items that it sent."""
    off = abs(drift_tokens)
    if off <= max(DOUBT_TOKENS, DOUBT_TOKENS_PER_ITEM * len(sent_now)):
        return False
    part, whole = DOUBT_SHARE
    return off > sum(m.project(calibration) for m in sent_now if m.known_tokens is None) * part // whole
