"""A dict of the newest entries."""

from mew_protocol.bounded_dict import BoundedDict


def test_the_entry_set_longest_ago_is_forgotten() -> None:
    kept: BoundedDict[str, int] = BoundedDict(2)
    kept["a"], kept["b"] = 1, 2
    kept["a"] = 3
    kept["c"] = 4
    assert dict(kept) == {"a": 3, "c": 4}


def test_an_update_keeps_the_limit() -> None:
    kept: BoundedDict[int, None] = BoundedDict(2)
    kept.update(dict.fromkeys(range(5)))
    assert list(kept) == [3, 4]
