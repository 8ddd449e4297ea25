"""The public face: all parts together, on everything that peers may send."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mew_protocol.codec import DEFAULT_MAX_BYTES, StreamFrame, encode_frame
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.all_kinds import PAYLOADS as MODELS
from mew_spaces.config.loading import SpaceConfig
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent.errors import ConfigError, GatewayError, NotPermitted, PeerAbsent, PeerFailed
from mew_agent.participant.client import Credentials
from mew_agent.participant.event_handlers import PeerJoined, PeerLeft
from mew_agent.participant.gaps import SpaceEvent
from mew_agent.participant.participant import Participant
from mew_agent.participant.peers import Peer, PeerContext
from tests.support.waiting import PATIENCE_SECONDS, until

Joined = Callable[..., Participant]

REPORT = {"basis": "reported", "level": "near_limit", "severity": 2, "revision": 0, "max_tokens_basis": "loaded"}
FULL = {"messages_in_context": 4, "tokens": 98412, "max_tokens": 128000, "status": "active", "context": REPORT}


async def test_a_revocation_returns_all_ended_rights(joined: Joined) -> None:
    rights = [{"kind": "capability/*"}, {"kind": "space/kick"}]
    async with joined("ada") as me, joined("coder") as coder:
        await me.send("capability/grant", {"recipient": "coder", "capabilities": rights})
        with anyio.fail_after(PATIENCE_SECONDS):
            await until(lambda: coder.may_send("space/kick", {}))
        await coder.send("capability/grant", {"recipient": "bob", "capabilities": rights})
        assert await me.revoke("coder", {"kind": "chat"}) == ()
        assert await me.revoke("coder", {"kind": "space/*"}, keep_passed_on=True) == ()
        (ended,) = await me.revoke("coder", {"kind": "*"})
        assert (ended.participant, ended.granted_by, ended.capabilities) == ("bob", "coder", tuple(rights))
        with pytest.raises(NotPermitted):
            await coder.revoke("bob", {"kind": "*"})


async def test_program_reads_watches_and_acts_on_a_peers_context(joined: Joined) -> None:
    """The first program of the documentation: find a peer that runs low and let it compact."""
    async with joined("bob") as coder:

        @coder.on("participant/compact")
        async def obey(request: Envelope) -> None:
            done = {"status": "compacted", "skipped": False, "freed_tokens": 71366}
            await coder.send("participant/compact-done", done, to=request.sender, correlation_id=(request.id,))

        await coder.send("participant/status", FULL)
        printed: list[tuple[str, int | None]] = []
        async with joined("ada") as me:
            assert me.peers["bob"].context.tokens == 98412
            assert me.peers["bob"].context.basis == "reported"

            @me.on_context
            async def watch(peer: Peer, report: PeerContext) -> None:
                if report.severity >= 2:
                    done = await me.compact(peer.id, reason="running full", timeout_seconds=60)
                    printed.append((peer.id, done.freed_tokens))
                    await me.aclose()

            @me.tool
            async def word_count(text: str) -> int:
                """Count the words of a text."""
                return len(text.split())

            assert await word_count("a tool stays a function") == 5
            await coder.send("participant/status", FULL)
            with anyio.fail_after(PATIENCE_SECONDS):
                await me.run_forever()
        # The participant itself answers that it has nothing to compact, before the program's handler answers.
        assert printed[0][0] == "bob"


async def test_failing_handlers_stop_nothing(joined: Joined, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "mew_agent")
    async with joined("ada") as ada, joined("bob") as bob:
        heard = anyio.Event()

        @ada.on("chat")
        async def fail(_chat: Envelope) -> None:
            raise RuntimeError("my mistake")

        def takes_nothing() -> None: ...

        ada.on("chat")(takes_nothing)  # type: ignore[type-var]
        ada.on("chat")(lambda _chat: None)
        ada.on_context(takes_nothing)  # type: ignore[type-var]

        @ada.on("chat")
        async def note(_chat: Envelope) -> None:
            heard.set()

        await bob.send("participant/status", FULL)
        await bob.chat("hello")
        with anyio.fail_after(PATIENCE_SECONDS):
            await heard.wait()
        assert ada.is_joined


async def test_stream_frames_reach_the_hook(gateway: RunningGateway, joined: Joined) -> None:
    frames: list[StreamFrame] = []
    arrived = anyio.Event()

    class Listener(Participant):
        async def receive_frame(self, frame: StreamFrame) -> None:
            frames.append(frame)
            arrived.set()

    async with (
        Listener(gateway.ws_url, space="demo", id="bob", token=gateway.token_of("bob")),
        joined("ada") as ada,
    ):
        request = {"direction": "upload"}
        opening = await ada.ask("stream/request", request, to="gateway", answer="stream/open", timeout_seconds=60)
        await ada.send_frame(encode_frame(opening.body["stream_id"], "a#b"))
        with anyio.fail_after(PATIENCE_SECONDS):
            await arrived.wait()
    assert frames[0].data in ("a#b", b"a#b")


async def test_hook_learns_of_a_new_connection_and_peers_stay_known(space: SpaceConfig, tokens: TokenBook) -> None:
    joins = 0

    class Counter(Participant):
        async def joined(self) -> None:
            nonlocal joins
            joins += 1

    async def host(port: int, stop: anyio.Event, *, task_status: Any) -> None:
        async with serve_gateway(space, tokens=tokens, port=port) as gateway:
            task_status.started(gateway)
            await stop.wait()

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as gateways:
            stop, end = anyio.Event(), anyio.Event()
            gateway = await gateways.start(host, 0, stop)
            async with Counter(gateway.ws_url, space="demo", id="ada", token=gateway.token_of("ada")) as ada:
                stop.set()
                await until(lambda: not ada.is_joined)
                await gateways.start(host, gateway.port, end)
                sent = await ada.chat("back again")
                assert sent.sender == "ada"
            end.set()
    assert joins == 2


async def test_later_welcome_causes_events_for_joined_and_left_peers(joined: Joined) -> None:
    """After a reconnect, only the welcome shows what happened meanwhile."""
    async with joined("bob"), joined("ada") as ada:
        seen: list[str] = []
        reported = anyio.Event()

        @ada.on(SpaceEvent)
        async def note(event: SpaceEvent) -> None:
            assert isinstance(event, PeerJoined | PeerLeft)
            seen.append(f"{type(event).__name__} {event.peer.id}")
            if len(seen) == 2:
                reported.set()

        welcome = {
            "you": {"id": "ada", "capabilities": [{"kind": "*"}]},
            "participants": [{"id": "ghost", "capabilities": []}],
        }
        await ada.dispatcher.dispatch(
            Envelope.write("system/welcome", id="w", ts="t", sender="system:gateway", payload=welcome, to=("ada",))
        )
        with anyio.fail_after(PATIENCE_SECONDS):
            await reported.wait()
        assert seen == ["PeerLeft bob", "PeerJoined ghost"]


async def test_tool_name_and_description_can_be_overridden(joined: Joined) -> None:
    async with joined("ada") as ada, joined("bob") as bob:

        @bob.tool(name="upper", description="Say it louder.")
        def shout(text: str) -> str:
            return text.upper()

        assert shout("stays a function") == "STAYS A FUNCTION"
        (tool,) = (await ada.discover("bob")).tools or ()
        assert (tool.name, tool.description) == ("upper", "Say it louder.")
        assert (await ada.call_tool("bob", "upper", {"text": "a"})).text == "A"


async def test_result_above_the_size_limit_gets_an_error_response(joined: Joined) -> None:
    async with joined("ada") as ada, joined("bob") as bob:

        @bob.tool
        def everything() -> str:
            return "x" * DEFAULT_MAX_BYTES

        with anyio.fail_after(PATIENCE_SECONDS):
            await until(lambda: "bob" in ada.peers)
            with pytest.raises(PeerFailed, match="the result cannot be sent: a message of"):
                await ada.call_tool("bob", "everything")
        assert bob.is_joined


async def test_unreadable_first_welcome_fails_the_joining(gateway: RunningGateway) -> None:
    ada = Participant(gateway.ws_url, space="demo", id="ada", token="t")
    broken = Envelope.write("system/welcome", id="w", ts="t", sender="system:gateway", payload={}, to=("ada",))
    with pytest.raises(GatewayError, match=r"cannot read the gateway's welcome: .*payload\.you"):
        await ada.dispatcher.dispatch(broken)


async def test_welcome_for_another_or_unreadable_changes_nothing(joined: Joined) -> None:
    async with joined("ada") as ada:
        for to in (("bob",), ("ada",)):
            you = {"you": {"id": "bob", "capabilities": []}} if to == ("bob",) else {"you": 5}
            await ada.dispatcher.dispatch(
                Envelope.write("system/welcome", id="w", ts="t", sender="system:gateway", payload=you, to=to)
            )
        assert ada.may_send("chat")
        await ada.chat("still here")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "text", "method", "params", "name", "fields", "context", "x"]), inner)
    ),
    max_leaves=6,
)
PAYLOADS = st.none() | st.dictionaries(
    st.sampled_from(
        [
            "text",
            "reason",
            "timeout_seconds",
            "fields",
            "direction",
            "entries",
            "target_tokens",
            "method",
            "params",
            "you",
            "participants",
            "event",
            "participant",
            "status",
            "tokens",
            "messages_in_context",
            "context",
            "mode",
            "stream_id",
            "recipient",
            "capabilities",
            "error",
            "board",
        ]
    ),
    JSON,
)


@st.composite
def envelopes(draw: st.DrawFn, me: str = "ada") -> Envelope:
    """Anything that can be decoded: known and unknown kinds, mostly with invalid payloads."""
    values: dict[str, Any] = {
        "protocol": "mew/v0.4",
        "id": draw(st.text(max_size=6)),
        "ts": draw(st.text(max_size=6)),
        "from": draw(st.sampled_from(["bob", me, "system:gateway", "gateway", "", "nobody"])),
        "kind": draw(st.sampled_from(sorted(MODELS.keys() - {"participant/shutdown"})) | st.text(max_size=6)),
        "payload": draw(PAYLOADS),
    }
    for key, choices in (
        ("to", st.sampled_from([[], [me], ["bob"], me, [me, me]])),
        ("correlation_id", st.lists(st.text(max_size=4), max_size=2) | st.text(max_size=4)),
        ("context", st.text(max_size=4) | st.dictionaries(st.text(max_size=2), JSON, max_size=2)),
    ):
        if draw(st.booleans()):
            values[key] = draw(choices)
    return Envelope.model_validate(values)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(received=st.lists(envelopes(), min_size=1, max_size=12))
async def test_no_message_of_a_peer_ends_a_participant(gateway: RunningGateway, received: list[Envelope]) -> None:
    async with Participant(gateway.ws_url, space="demo", id="ada", token=gateway.token_of("ada")) as ada:
        for envelope in received:
            await ada.dispatcher.dispatch(envelope)
        await ada.dispatcher.dispatch(StreamFrame("s", "#s#x"))
        resume = Envelope.write("participant/resume", id="r", ts="t", sender="bob", to=("ada",))
        await ada.dispatcher.dispatch(resume)
        await anyio.lowlevel.checkpoint()
        assert ada.is_joined


@pytest.mark.parametrize("method", [["x"], {}, 5, None])
async def test_notification_without_a_readable_method_is_passed_on(
    method: object, caplog: pytest.LogCaptureFixture
) -> None:
    received: list[str] = []

    class Follower(Participant):
        async def receive(self, envelope: Envelope) -> None:
            received.append(envelope.id)

    me = Follower("ws://h", space="demo", id="ada", token="t")
    notification = Envelope.write("mcp/notification", id="n", ts="t", sender="bob", payload={"method": method})
    await me.dispatcher.dispatch(notification)
    assert received == ["n"]
    assert not caplog.records


async def test_from_environment_reads_the_variables_or_names_the_missing() -> None:
    place = {"MEW_GATEWAY": "ws://127.0.0.1:1", "MEW_SPACE": "demo", "MEW_PARTICIPANT_ID": "bob", "MEW_TOKEN": "t"}
    me = Participant.from_environment(place)
    assert (me.id, me.space) == ("bob", "demo")
    with pytest.raises(ConfigError, match="MEW_SPACE, MEW_TOKEN not set"):
        Participant.from_environment({**place, "MEW_SPACE": "", "MEW_TOKEN": ""})
    with pytest.raises(ConfigError, match=r"unknown variable 'MEW_GATEWAY_URL' \(did you mean 'MEW_GATEWAY'\?\)"):
        Participant.from_environment({**place, "MEW_GATEWAY": "", "MEW_GATEWAY_URL": "ws://127.0.0.1:1"})
    mine = {"MEW_MODE": "fast", "MEW_SPACES": "two", "MEW_TOKEN_BOB": "t"}  # close, but what they resemble is set
    assert Participant.from_environment({**place, **mine}).id == "bob"


async def test_the_environment_is_read_on_entering(gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MEW_GATEWAY", "MEW_SPACE", "MEW_PARTICIPANT_ID", "MEW_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    me = Participant.from_environment()  # a test imports the module of a program

    @me.tool
    def add(one: int, other: int) -> int:
        """Add two numbers."""
        return one + other

    with pytest.raises(ConfigError, match="MEW_GATEWAY, MEW_SPACE, MEW_PARTICIPANT_ID, MEW_TOKEN not set"):
        async with me:
            pass
    ada = {"MEW_GATEWAY": gateway.ws_url, "MEW_SPACE": "demo", "MEW_PARTICIPANT_ID": "ada"}
    for name, value in {**ada, "MEW_TOKEN": gateway.token_of("ada")}.items():
        monkeypatch.setenv(name, value)
    bob = Participant(gateway.ws_url, space="demo", id="bob", token=gateway.token_of("bob"))
    async with bob:
        async with me:
            assert (me.id, me.space) == ("ada", "demo")
            assert "bob" in me.peers
            result = await bob.call_tool("ada", "add", {"one": 2, "other": 3})
        assert result.text == "5"


def test_every_part_has_the_name_that_the_environment_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEW_PARTICIPANT_ID", "old-name")
    me = Participant.from_environment()
    me.use(Credentials("ws://127.0.0.1:1", "demo", "ada", "t"))
    seen, found, waiting = set[int](), [], list[tuple[str, Any]]([("me", me)])
    while waiting:
        path, one = waiting.pop()
        if one == "old-name":
            found.append(path)
        elif id(one) not in seen and type(one).__module__.startswith(("mew_agent", "mew_protocol")):
            seen.add(id(one))
            waiting += [(f"{path}.{name}", value) for name, value in attributes_of(one).items()]
    assert len(seen) > 20
    assert found == []


def attributes_of(one: object) -> dict[str, Any]:
    slots = [name for cls in type(one).__mro__ for name in getattr(cls, "__slots__", ())]
    return {**getattr(one, "__dict__", {}), **{name: getattr(one, name) for name in slots if hasattr(one, name)}}


def test_a_place_is_given_as_a_whole() -> None:
    with pytest.raises(ConfigError, match="space and token missing"):
        Participant("ws://h", id="ada")


async def test_a_participant_without_a_place_cannot_join() -> None:
    with pytest.raises(ConfigError, match="no space to join"):
        async with Participant(id="ada"):
            pass


@pytest.mark.parametrize(
    "use",
    [
        lambda me: me.chat("hello"),
        lambda me: me.ask_agent("coder", "hello"),
        lambda me: me.compact("coder"),
        lambda me: me.call_tool("files", "read", {}),
        lambda me: me.discover("files"),
        lambda me: me.would_fit("coder", "hello"),
        lambda me: me.shutdown("coder"),
    ],
)
async def test_a_participant_that_was_not_entered_says_so(use: Callable[[Participant], Awaitable[object]]) -> None:
    me = Participant("ws://127.0.0.1:9", space="review", id="ada", token="t")
    with pytest.raises(GatewayError, match="'ada' has not joined its space; enter it with `async with` first"):
        await use(me)


async def test_a_participant_joins_once(joined: Joined) -> None:
    async with joined("ada") as ada:
        with pytest.raises(RuntimeError, match="'ada' was entered before; make a new Participant to join again"):
            await ada.__aenter__()
        await ada.chat("It is still here.")


async def test_a_misspelt_peer_is_named_with_the_one_that_was_meant(joined: Joined) -> None:
    async with joined("coder"), joined("ada") as ada:
        with pytest.raises(PeerAbsent, match=r"'codr' is not in the space \(did you mean 'coder'\?\)"):
            await ada.ask_agent("codr", "hello")


def test_a_handler_that_is_no_function_is_refused() -> None:
    me = Participant(id="ada")
    with pytest.raises(TypeError, match="a handler is a function, not 'coder'"):
        me.on("chat")("coder")  # type: ignore[type-var]
