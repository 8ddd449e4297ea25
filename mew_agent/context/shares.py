"""[pure] Splitting a reported figure among its parts, in whole tokens that sum to it."""

from collections.abc import Sequence


def fit(total: int, wanted: Sequence[int]) -> list[int]:
    """Correct projections so that they sum to `total`: each by the square of its size, as errors of its size would.

    Where that would take more than a part has, all are scaled alike instead.
    """
    missing, squares = total - sum(wanted), sum(size * size for size in wanted)
    if not squares:
        return apportion(total, wanted)
    corrected = [size + missing * size * size // squares for size in wanted]
    return apportion(total, corrected if min(corrected) >= 0 else wanted)


def apportion(total: int, weights: Sequence[int]) -> list[int]:
    """Split `total` into integers in proportion to the weights, summing to it exactly (largest remainder)."""
    if not weights:
        return []
    whole = sum(weights)
    if whole <= 0:
        return [total, *[0] * (len(weights) - 1)]
    shares = [total * weight // whole for weight in weights]
    order = sorted(range(len(weights)), key=lambda i: (-(total * weights[i] % whole), i))
    for i in order[: total - sum(shares)]:
        shares[i] += 1
    return shares
