"""Collections of the newest entries, of one owner and of several."""

from mew_listener.bounded_dict import WEIGHT_BYTES, BoundedDict, FairDict, Shares, cached_by_text, weight_of


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


def test_the_owner_of_most_entries_loses_its_oldest() -> None:
    kept: FairDict[str, str] = FairDict(4, lambda _, owner: owner)
    kept["mine"] = "ada"
    for number in range(10):
        kept[f"flood {number}"] = "bob"
    assert list(kept) == ["mine", "flood 7", "flood 8", "flood 9"]
    kept["other"] = "cleo"
    assert list(kept) == ["mine", "flood 8", "flood 9", "other"]
    assert next(reversed(kept)) == "other"


def test_an_owner_at_its_own_limit_takes_nothing_from_others() -> None:
    kept: FairDict[int, str] = FairDict(100, lambda _, owner: owner, own_limit=2)
    kept[0], kept[1] = "ada", "ada"
    for number in range(2, 9):
        kept[number] = "bob"
    assert dict(kept) == {0: "ada", 1: "ada", 7: "bob", 8: "bob"}
    kept[7] = "bob"  # set again: the newest
    kept[9] = "bob"
    assert list(kept) == [0, 1, 7, 9]
    del kept[7]
    kept[10] = "bob"
    assert list(kept) == [0, 1, 9, 10]


def test_weights_decide_the_owner_with_the_most() -> None:
    shares: Shares[str] = Shares()
    for number in range(5):
        shares.add(f"small {number}", "ada")
    shares.add("large", "bob", 6)
    assert shares.surplus(11) is None
    assert shares.surplus(10) == "large"
    shares.discard("large")
    assert (shares.weight, shares.count("bob"), len(shares), shares.surplus(5)) == (5, 0, 5, None)


def test_the_next_to_go_does_not_depend_on_how_a_state_was_reached() -> None:
    live: Shares[str] = Shares()
    for key, owner in (("a1", "ada"), ("b1", "bob"), ("a2", "ada"), ("b2", "bob")):
        live.add(key, owner)
    live.discard("a1")
    live.discard("b2")
    restored: Shares[str] = Shares()
    for key, owner in (("b1", "bob"), ("a2", "ada")):
        restored.add(key, owner)
    for shares in (live, restored):
        shares.add("c1", "cleo")
    assert list(live) == list(restored)
    assert live.surplus(2) == restored.surplus(2)


def test_a_long_text_counts_as_several_entries() -> None:
    kept: FairDict[str, str] = FairDict(4, lambda key, _: key[0], weight=lambda _, text: weight_of(len(text)))
    kept["b1"] = "short"
    for number in range(4):
        kept[f"m{number}"] = "x" * (WEIGHT_BYTES + 1)
    assert list(kept) == ["b1", "m3"]


def test_results_are_cached_for_texts_of_a_bounded_size() -> None:
    computed: list[str] = []

    @cached_by_text(1_000)
    def length(text: str) -> int:
        computed.append(text)
        return len(text)

    assert [length("a" * 400), length("b" * 400), length("a" * 400)] == [400, 400, 400]
    assert len(computed) == 2
    length("c" * 400)  # the one that was used longest ago goes
    assert length("a" * 400) == 400
    assert len(computed) == 3
    length("b" * 400)
    assert len(computed) == 4
    length("d" * 2_000)
    length("d" * 2_000)
    assert len(computed) == 6
    length("b" * 400)  # a text that is too long evicts no other
    assert len(computed) == 6
