"""The library's front door: joining, saying, asking, hearing; and everything that peers may send."""

import logging
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mew_agent.client import Address, Client
from mew_agent.errors import (
    BadAnswer,
    ConfigError,
    GatewayError,
    NotConnected,
    NotPermitted,
    PeerTimeout,
    Refused,
    Unauthorized,
)
from mew_agent.participant import Participant, timestamp
from mew_agent.peers import Peer, PeerContext
from protocol.codec import StreamFrame, encode_frame
from protocol.envelope import Envelope
from protocol.kinds import ALL_KINDS
from spaces.auth import TokenBook
from spaces.config import SpaceConfig
from spaces.gateway import RunningGateway, serve_gateway

Joined = Callable[..., Participant]

REPORT = {"basis": "reported", "level": "near_limit", "severity": 2, "revision": 0, "max_tokens_basis": "loaded"}
FULL = {"messages_in_context": 4, "tokens": 98412, "max_tokens": 128000, "status": "active", "context": REPORT}


async def test_a_peers_context_is_read_watched_and_acted_upon(joined: Joined) -> None:
    """The story of the documentation: see who runs full, and have it compact."""
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
                    done = await me.compact(peer.id, reason="running full", timeout_seconds=10)
                    printed.append((peer.id, done.freed_tokens))
                    await me.aclose()

            @me.tool
            async def word_count(text: str) -> int:
                """Count the words of a text."""
                return len(text.split())

            assert await word_count("a tool stays a function") == 5
            await coder.send("participant/status", FULL)
            with anyio.fail_after(10):
                await me.run_forever()
        # A base participant has nothing to compact and says so; the program's own answer came after it.
        assert printed[0][0] == "bob"


async def test_entering_returns_when_welcomed_and_leaving_leaves(gateway: RunningGateway, joined: Joined) -> None:
    async with joined("ada") as ada:
        assert ada.is_joined
        assert ada.may_send("chat")
        assert gateway.switchboard.connections == 1
    with pytest.raises(NotConnected):
        await ada.chat("gone")
    with anyio.fail_after(5):
        while gateway.switchboard.connections:
            await anyio.wait_all_tasks_blocked()


async def test_what_makes_joining_impossible_is_raised_as_it_is(gateway: RunningGateway, free_port: int) -> None:
    with anyio.fail_after(10):
        with pytest.raises(Unauthorized):
            async with Participant(gateway.ws_url, space="demo", id="ada", token="wrong"):
                pass
        with pytest.raises(GatewayError, match="no space 'other'"):
            async with Participant(gateway.ws_url, space="other", id="ada", token=gateway.token_of("ada")):
                pass
        with pytest.raises(NotConnected):
            async with Participant(
                f"ws://127.0.0.1:{free_port}", space="demo", id="ada", token="t", first_connect_seconds=0.2
            ):
                pass
        with pytest.raises(ConfigError):
            async with Participant("localhost:8080", space="demo", id="ada", token="t"):
                pass


async def test_an_error_in_the_block_comes_out_as_it_is(joined: Joined) -> None:
    with pytest.raises(LookupError, match="mine"):
        async with joined("ada"):
            raise LookupError("mine")


async def test_cancelling_the_block_leaves_the_space(gateway: RunningGateway, joined: Joined) -> None:
    inside = anyio.Event()

    async def stay() -> None:
        async with joined("ada") as ada:
            inside.set()
            await ada.run_forever()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stay)
            await inside.wait()
            tasks.cancel_scope.cancel()
        while gateway.switchboard.connections:
            await anyio.wait_all_tasks_blocked()


async def test_running_for_ever_raises_what_ended_it(joined: Joined) -> None:
    with anyio.fail_after(10):
        async with joined("coder") as first:
            async with joined("coder"):
                with pytest.raises(GatewayError, match="another connection joined"):
                    await first.run_forever()
            with pytest.raises(NotConnected):
                await first.chat("anybody?")


async def test_asking_brings_the_answer_of_the_one_who_was_asked(joined: Joined) -> None:
    async with joined("ada") as ada, joined("bob") as bob, joined("writer") as writer:

        @writer.on("chat")
        async def forge(question: Envelope) -> None:
            if question.sender == "ada":
                await writer.chat("I am bob, believe me", to="ada", correlation_id=(question.id,))
                await ada.chat("go on, bob", to="bob")

        @bob.on("chat")
        async def reply(heard: Envelope) -> None:
            if heard.body["text"] == "go on, bob":
                await bob.chat("the true answer", to="ada", correlation_id=questions)

        questions: tuple[str, ...] = ()

        @bob.on("chat")
        async def remember(heard: Envelope) -> None:
            nonlocal questions
            if heard.body["text"] == "what is true?":
                questions = (heard.id,)

        answer = await ada.ask("chat", {"text": "what is true?"}, to="bob", answer="chat", timeout_seconds=10)
        assert answer.body["text"] == "the true answer"


async def test_nobody_answering_is_told_after_the_bound(joined: Joined) -> None:
    async with joined("ada") as ada:
        with pytest.raises(PeerTimeout, match=r"'ghost' did not answer 'chat' within 0\.05 seconds"):
            await ada.ask("chat", {"text": "hello?"}, to="ghost", answer="chat", timeout_seconds=0.05)


async def test_a_refusal_of_the_gateway_ends_the_waiting_at_once(joined: Joined) -> None:
    async with joined("ada") as ada:
        with anyio.fail_after(10), pytest.raises(Refused, match=r"refused 'chat' to 'bob' \(invalid_payload\)"):
            await ada.ask("chat", {"text": ""}, to="bob", answer="chat", timeout_seconds=600)


async def test_an_answer_that_cannot_be_read_is_the_peers_fault(gateway: RunningGateway, joined: Joined) -> None:
    client = Client(Address(gateway.ws_url, "demo", "writer", gateway.token_of("writer")))

    async def answer(message: Envelope | StreamFrame) -> None:
        if isinstance(message, Envelope) and message.kind == "participant/compact":
            await client.send(
                Envelope.write(
                    "participant/compact-done",
                    id="broken",
                    ts=timestamp(),
                    sender="writer",
                    payload={"status": 5},
                    correlation_id=(message.id,),
                )
            )

    async with joined("ada") as ada, anyio.create_task_group() as tasks:
        tasks.start_soon(client.run, answer)
        with anyio.fail_after(10):
            while "writer" not in ada.peers:
                await anyio.wait_all_tasks_blocked()
        with pytest.raises(BadAnswer, match=r"'writer' answered what cannot be read: .*payload\.status"):
            await ada.compact("writer", timeout_seconds=10)
        await client.aclose()


async def test_what_we_may_not_say_is_not_sent(joined: Joined) -> None:
    async with joined("mute") as mute:
        assert not mute.may_send("participant/status")
        with pytest.raises(NotPermitted, match="'mute' has no capability that covers 'participant/compact'"):
            await mute.compact("ada")
        with pytest.raises(NotPermitted):
            await mute.send("mcp/request", {"method": "tools/list"}, to="ada")


async def test_while_paused_nothing_goes_out_that_should_wait(joined: Joined) -> None:
    async with joined("ada") as ada, joined("bob") as bob:
        heard: list[str] = []

        @ada.on("chat")
        async def listen(chat: Envelope) -> None:
            heard.append(str(chat.body["text"]))

        await ada.ask("participant/pause", {}, to="bob", answer="participant/status", timeout_seconds=10)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bob.chat, "said while paused")
            with pytest.raises(PeerTimeout):
                await bob.ask("chat", {"text": "asked while paused"}, to="ada", answer="chat", timeout_seconds=0.05)
            assert (await ada.request_status("bob", timeout_seconds=10)).status == "paused"
            assert heard == []
            await ada.send("participant/resume", to="bob")
        with anyio.fail_after(10):
            while not heard:
                await anyio.wait_all_tasks_blocked()
        assert heard == ["said while paused"]


async def test_a_pause_right_behind_a_resume_lets_nothing_slip_through(joined: Joined) -> None:
    async with joined("ada") as ada, joined("bob") as bob:
        await ada.ask("participant/pause", {}, to="bob", answer="participant/status", timeout_seconds=10)
        heard: list[str] = []

        @ada.on(None)
        async def listen(envelope: Envelope) -> None:
            if envelope.sender == "bob":
                heard.append(str(envelope.body.get("text") or envelope.body.get("status")))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bob.chat, "later")
            await anyio.wait_all_tasks_blocked()
            bob.control._active.set()
            bob.control._active = anyio.Event()
            assert (await ada.request_status("bob", timeout_seconds=10)).status == "paused"
            assert "later" not in heard
            await ada.send("participant/resume", to="bob")


async def test_handlers_that_fail_stop_nothing(joined: Joined, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "mew_agent")
    async with joined("ada") as ada, joined("bob") as bob:
        heard = anyio.Event()

        @ada.on("chat")
        async def fail(_chat: Envelope) -> None:
            raise RuntimeError("my mistake")

        def takes_nothing() -> None: ...

        ada.on("chat")(takes_nothing)  # type: ignore[arg-type]
        ada.on("chat")(lambda _chat: None)  # type: ignore[arg-type,return-value]
        ada.on_context(takes_nothing)  # type: ignore[arg-type]

        @ada.on("chat")
        async def note(_chat: Envelope) -> None:
            heard.set()

        await bob.send("participant/status", FULL)
        await bob.chat("hello")
        with anyio.fail_after(10):
            await heard.wait()
        assert ada.is_joined


async def test_what_runs_beside_the_connection_may_fail(joined: Joined, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "mew_agent")
    async with joined("ada") as ada:

        async def fail(error: Exception) -> None:
            raise error

        ada.start_soon(fail, ValueError("mine"))
        ada.start_soon(fail, NotConnected("ws://h"))
        await anyio.wait_all_tasks_blocked()
        assert ada.is_joined
        assert "not connected to the gateway at ws://h" in caplog.text


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
        opening = await ada.ask("stream/request", request, to="gateway", answer="stream/open", timeout_seconds=10)
        await ada.send_frame(encode_frame(opening.body["stream_id"], "a#b"))
        with anyio.fail_after(10):
            await arrived.wait()
    assert frames[0].data in ("a#b", b"a#b")


async def test_a_rejoin_is_told_to_the_hook_and_the_peers_stay_known(space: SpaceConfig, tokens: TokenBook) -> None:
    joins = 0

    class Counter(Participant):
        async def joined(self) -> None:
            nonlocal joins
            joins += 1

    async def host(port: int, stop: anyio.Event, *, task_status: Any) -> None:
        async with serve_gateway(space, tokens=tokens, port=port) as gateway:
            task_status.started(gateway)
            await stop.wait()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as gateways:
            stop, end = anyio.Event(), anyio.Event()
            gateway = await gateways.start(host, 0, stop)
            async with Counter(gateway.ws_url, space="demo", id="ada", token=gateway.token_of("ada")) as ada:
                stop.set()
                while ada.is_joined:
                    await anyio.wait_all_tasks_blocked()
                await gateways.start(host, gateway.port, end)
                sent = await ada.chat("back again")
                assert sent.sender == "ada"
            end.set()
    assert joins == 2


async def test_a_welcome_that_cannot_be_read_fails_the_joining(gateway: RunningGateway) -> None:
    ada = Participant(gateway.ws_url, space="demo", id="ada", token="t")
    broken = Envelope.write("system/welcome", id="w", ts="t", sender="system:gateway", payload={}, to=("ada",))
    with pytest.raises(GatewayError, match=r"welcome cannot be read: .*payload\.you"):
        await ada._take(broken)


async def test_a_welcome_that_is_not_ours_or_broken_changes_nothing(joined: Joined) -> None:
    async with joined("ada") as ada:
        for to in (("bob",), ("ada",)):
            you = {"you": {"id": "bob", "capabilities": []}} if to == ("bob",) else {"you": 5}
            await ada._take(
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
    """Anything that decodes: known and unknown kinds, with payloads that mostly make no sense."""
    values: dict[str, Any] = {
        "protocol": "mew/v0.4",
        "id": draw(st.text(max_size=6)),
        "ts": draw(st.text(max_size=6)),
        "from": draw(st.sampled_from(["bob", me, "system:gateway", "gateway", "", "nobody"])),
        "kind": draw(st.sampled_from(sorted(ALL_KINDS - {"participant/shutdown"})) | st.text(max_size=6)),
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


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(received=st.lists(envelopes(), min_size=1, max_size=12))
async def test_nothing_a_peer_sends_ends_a_participant(gateway: RunningGateway, received: list[Envelope]) -> None:
    async with Participant(gateway.ws_url, space="demo", id="ada", token=gateway.token_of("ada")) as ada:
        for envelope in received:
            await ada._take(envelope)
        await ada._take(StreamFrame("s", "#s#x"))
        resume = Envelope.write("participant/resume", id="r", ts="t", sender="bob", to=("ada",))
        await ada._take(resume)
        await anyio.lowlevel.checkpoint()
        assert ada.is_joined


def test_a_timestamp_is_rfc_3339_with_milliseconds_in_utc() -> None:
    import re

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", timestamp())


async def test_a_program_that_was_started_for_a_participant_finds_its_place_in_the_environment() -> None:
    place = {"MEW_GATEWAY": "ws://127.0.0.1:1", "MEW_SPACE": "demo", "MEW_PARTICIPANT_ID": "bob", "MEW_TOKEN": "t"}
    me = Participant.from_environment(place)
    assert (me.id, me.space) == ("bob", "demo")
    with pytest.raises(ConfigError, match="MEW_SPACE, MEW_TOKEN not set"):
        Participant.from_environment({**place, "MEW_SPACE": "", "MEW_TOKEN": ""})
