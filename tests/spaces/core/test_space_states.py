"""In any order of grants, removals, pauses and messages, permissions follow the rules exactly."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from mew_protocol import errors
from mew_protocol.capability import BASELINE
from mew_spaces.config.loading import SpaceConfig

from tests.support.space_driver import SpaceDriver

BOSS = "ada"
EVERYTHING = {"kind": "**"}  # advertised next to a lone star
CONFIGURED = {BOSS: [{"kind": "*"}], "bob": [{"kind": "chat"}], "coder": [{"kind": "chat"}, {"kind": "x"}]}
OTHERS = st.sampled_from(["bob", "coder", "eve"])
NAMES = st.sampled_from([BOSS, "bob", "coder", "eve"])
PATTERNS: list[dict[str, Any]] = [{"kind": "x"}, {"kind": "y/*"}, {"kind": "chat"}, {"kind": "space/invite"}]


class PermissionMachine(RuleBasedStateMachine):
    """A second, simple implementation of the rules, compared with the space after each step."""

    def __init__(self) -> None:
        super().__init__()
        people = {name: {"capabilities": patterns, "command": "x"} for name, patterns in CONFIGURED.items()}
        self.driver = SpaceDriver(SpaceConfig.model_validate({"space": {"id": "a"}, "participants": people}))
        self.base: dict[str, list[dict[str, Any]]] = {name: list(patterns) for name, patterns in CONFIGURED.items()}
        self.granted: dict[str, dict[str, dict[str, Any]]] = {}
        self.paused: set[str] = set()
        self.shut_down: set[str] = set()
        self.connection: dict[str, int] = {}
        self.away: dict[str, float] = {}
        self.opened = self.grants = 0
        for name in CONFIGURED:
            self.join(name)

    def send_as_boss(self, kind: str, payload: Any = None, **headers: Any) -> Any:
        return self.driver.send_envelope(self.connection[BOSS], BOSS, kind, payload, **headers)

    @rule(name=NAMES)
    def join(self, name: str) -> None:
        if name not in self.base:
            return  # only participants have tokens
        self.opened += 1
        self.connection[name] = self.opened
        self.away.pop(name, None)
        self.shut_down.discard(name)
        self.driver.join(self.opened, name)

    @rule(name=OTHERS)
    def leave(self, name: str) -> None:
        if name in self.connection:
            self.driver.leave(self.connection.pop(name), name)
            self.away[name] = 0.0

    @rule(name=OTHERS)
    def stay_away(self, name: str) -> None:
        self.leave(name)
        self.wait(6)

    @rule(name=NAMES, pattern=st.sampled_from(PATTERNS))
    def grant(self, name: str, pattern: dict[str, Any]) -> None:
        self.grants += 1
        grant_id = f"grant-{self.grants}"
        receipt = self.send_as_boss("capability/grant", {"recipient": name, "capabilities": [pattern]}, id=grant_id)
        assert (receipt.accepted is not None) == (name in self.base)
        if receipt.accepted is not None:
            self.granted.setdefault(name, {})[grant_id] = pattern

    @precondition(lambda self: any(self.granted.values()))
    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(name for name, held in self.granted.items() if held)))
        grant_id = data.draw(st.sampled_from(sorted(self.granted[name])))
        assert self.send_as_boss("capability/revoke", {"recipient": name, "grant_id": grant_id}).accepted is not None
        del self.granted[name][grant_id]

    @rule(name=OTHERS, pattern=st.sampled_from(PATTERNS))
    def invite(self, name: str, pattern: dict[str, Any]) -> None:
        receipt = self.send_as_boss("space/invite", {"participant_id": name, "initial_capabilities": [pattern]})
        assert (receipt.accepted is not None) == (name not in self.base)
        if receipt.accepted is not None:
            self.base[name] = [pattern]
            token = receipt.answer["token"]
            assert token not in str([envelope.as_dict() for envelope in self.driver.history])

    @rule(name=OTHERS)
    def kick(self, name: str) -> None:
        receipt = self.send_as_boss("space/kick", {"participant_id": name})
        assert (receipt.accepted is not None) == (name in self.base)
        self.base.pop(name, None)
        self.granted.pop(name, None)
        self.away.pop(name, None)
        self.paused.discard(name)
        self.shut_down.discard(name)
        number = self.connection.pop(name, None)
        if number is not None:
            assert self.driver.closed[number] == errors.CLOSE_REMOVED  # type: ignore[index]

    @rule(name=OTHERS, kind=st.sampled_from(["pause", "resume", "shutdown"]))
    def control(self, name: str, kind: str) -> None:
        self.send_as_boss(f"participant/{kind}", to=[name])
        if name in self.base:
            {"pause": self.paused.add, "resume": self.paused.discard, "shutdown": self.shut_down.add}[kind](name)

    @rule(seconds=st.sampled_from([2, 6]))
    def wait(self, seconds: int) -> None:
        self.driver.wait(seconds)
        self.away = {name: gone + seconds for name, gone in self.away.items()}
        for name in [name for name, gone in self.away.items() if gone >= 5]:
            del self.away[name]
            self.granted.pop(name, None)

    @rule(name=OTHERS, kind=st.sampled_from(["x", "y/z", "chat", "space/kick", "chat/acknowledge"]))
    def send_envelope(self, name: str, kind: str) -> None:
        if name not in self.connection:
            return
        receipt = self.driver.send_envelope(self.connection[name], name, kind, {"text": "x"})
        held = [*self.base[name], *self.granted.get(name, {}).values()]
        may = {"kind": kind} in held or (kind == "y/z" and {"kind": "y/*"} in held)
        quiet = name in self.paused | self.shut_down and kind != "chat/acknowledge"
        assert (receipt.accepted is not None) == (may and not quiet)
        if receipt.refused is not None:
            assert receipt.refused.error == (errors.PAUSED if quiet else errors.CAPABILITY_VIOLATION)

    @invariant()
    def participants_have_exactly_their_capabilities(self) -> None:
        space = self.driver.space
        assert set(space.names) == self.base.keys()
        for name in space.names:
            held = [*self.base[name], *self.granted.get(name, {}).values(), BASELINE]
            expected = [each for one in held for each in ((one, EVERYTHING) if one == {"kind": "*"} else (one,))]
            assert space.describe(name)["capabilities"] == [
                one for i, one in enumerate(expected) if one not in expected[:i]
            ]

    @invariant()
    def members_are_those_that_joined_and_stayed(self) -> None:
        assert set(self.driver.space.members) == set(self.connection)
        assert set(self.driver.admitted) == set(self.connection.values())

    @invariant()
    def presence_matches_the_members(self) -> None:
        here: set[str] = set()
        for envelope in self.driver.history:
            if envelope.kind == "system/presence" and envelope.body["event"] != "invited":
                name = envelope.body["participant"]["id"]
                here = here | {name} if envelope.body["event"] == "join" else here - {name}
        assert here == set(self.connection)


TestPermissionMachine = PermissionMachine.TestCase
