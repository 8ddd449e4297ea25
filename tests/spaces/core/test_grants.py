"""Grants add up and are taken back by name or by pattern."""

from typing import Any

from mew_spaces.core.grants import Grant, Grants

CHAT, CALL = {"kind": "chat"}, {"kind": "mcp/request", "payload": {"n": 1}}


def grants() -> Grants:
    held = Grants()
    held.add("bob", Grant(frozenset({"g1", "mine"}), "ada", (CHAT, CALL)))
    held.add("bob", Grant(frozenset({"g2"}), "ada", (CHAT,)))
    return held


def test_what_was_granted_before_stays() -> None:
    assert grants().of("bob") == (CHAT, CALL, CHAT)
    assert grants().of("eve") == ()


def test_a_grant_is_revoked_by_any_of_its_names() -> None:
    for name in ("g1", "mine"):
        held = grants()
        assert held.revoke("bob", grant_id=name) == [CHAT, CALL]
        assert held.of("bob") == (CHAT,)


def test_a_pattern_is_revoked_wherever_it_was_granted_and_only_if_equal_as_json() -> None:
    held = grants()
    almost: list[dict[str, Any]] = [{"kind": "mcp/request", "payload": {"n": True}}, {"kind": "mcp/request"}]
    assert held.revoke("bob", patterns=almost) == []
    assert held.revoke("bob", patterns=[CHAT]) == [CHAT, CHAT]
    assert held.of("bob") == (CALL,)
    assert held.revoke("bob", patterns=[{"payload": {"n": 1.0}, "kind": "mcp/request"}]) == [CALL]
    assert held.of("bob") == ()


def test_what_was_never_granted_cannot_be_revoked() -> None:
    held = grants()
    assert held.revoke("bob", grant_id="other") == held.revoke("eve", grant_id="g1") == []
    assert held.of("bob") == (CHAT, CALL, CHAT)


def test_everything_can_be_forgotten() -> None:
    held = grants()
    assert held.forget("bob")
    assert not held.forget("bob")
    assert held.of("bob") == ()
