"""Effects are performed in order on the right channels."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest
from mew_board import changes
from mew_protocol.codec import StreamFrame, read_draft
from mew_protocol.envelope import Envelope, wire_timestamp
from mew_protocol.ids import ParticipantId, Position
from mew_protocol.join import DeliveryRequest
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.core.events import ConnectionId, FrameArrives
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.log_writer import LogWriter
from mew_spaces.gateway.service import SpaceService, history_bounds
from mew_spaces.log.memory import Bounds, SpaceLog
from mew_spaces.log.sqlite import SqliteLog

from mew_agent.participant.confirmed_delivery import presences_in
from mew_agent.participant.peers import Peers
from tests.support.channels import RecordingChannel

ADA, BOB, CODER = ParticipantId("ada"), ParticipantId("bob"), ParticipantId("coder")
START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


class SlowChannel(RecordingChannel):
    """A channel whose buffer is full after the message that says so."""

    LAST = "the last that fits"

    def __init__(self, on_slow: Callable[[], None]) -> None:
        super().__init__()
        self._on_slow = on_slow

    def write(self, framed: bytes) -> None:
        super().write(framed)
        if self.LAST.encode() in framed:
            self.stop_writing()
            self._on_slow()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def service(config: SpaceConfig, clock: Clock) -> SpaceService:
    return SpaceService(
        config, TokenBook.generate(config), clock=clock, space_log=SpaceLog(epoch="e", bounds=history_bounds(config))
    )


def joined(service: SpaceService, participant: ParticipantId) -> tuple[ConnectionId, RecordingChannel]:
    connection, channel = service.new_connection(), RecordingChannel()
    service.attach(connection, channel)
    service.join(connection, participant)
    return connection, channel


def kinds(channel: RecordingChannel) -> list[str]:
    return [json.loads(one)["kind"] if one[:1] in ("{", b"{") else str(one) for one in channel.written]


def status(tokens: int) -> Any:
    payload = {"tokens": tokens, "max_tokens": 20_000, "messages_in_context": 3, "status": "idle"}
    return read_draft({"kind": "participant/status", "payload": payload})


def chat(text: str) -> Any:
    return read_draft({"kind": "chat", "payload": {"text": text}})


def test_an_envelope_is_written_to_every_member_and_numbered(service: SpaceService) -> None:
    connection, ada = joined(service, ADA)
    _, bob = joined(service, BOB)
    service.receive(connection, ADA, chat("hi"))
    assert kinds(ada) == ["system/welcome", "system/presence", "chat"]
    assert kinds(bob) == ["system/welcome", "chat"]
    assert ada.written[-1] == bob.written[-1]
    entries = service.log.since(Position("e", 0))
    assert entries is not None
    assert [json.loads(entry.data)["kind"] for entry in entries] == ["system/presence", "system/presence", "chat"]
    assert service.connections == 2


def test_a_status_that_overtakes_the_batch_with_its_join_is_not_old(service: SpaceService) -> None:
    connection, channel = service.new_connection(), RecordingChannel()
    service.attach(connection, channel)
    service.join(connection, BOB, DeliveryRequest(batches_presence=True))
    while not service.sessions.presences.collects(is_replaying=False):
        """Other members join."""
    for name in (CODER, ADA):
        before, _ = joined(service, name)
        service.receive(before, name, status(704))
        service.leave(before)
        again, _ = joined(service, name)
        if name == CODER:
            service.receive(again, name, status(805))
    service.announce_collected()
    peers = Peers("bob")
    for raw in channel.written:
        received = Envelope.model_validate_json(raw)
        for one in presences_in(received) if received.kind == "system/presence-batch" else (received,):
            peers.receive(one)
    assert {one.id: (one.context.tokens, one.context.outdated) for one in peers.values()} == {
        "coder": (805, None),
        "ada": (704, "before_join"),
    }
    board = {one.id: one.outdated for one in service.board().participants}
    assert (board["coder"], board["ada"]) == (None, "before_join")


def test_a_departure_after_the_end_of_the_history_is_announced(service: SpaceService) -> None:
    connection, _ = joined(service, ADA)
    other, bob = joined(service, BOB)
    service.close()
    service.receive(other, BOB, chat("too late"))
    service.leave(connection)
    assert kinds(bob)[1:] == ["system/error", "system/presence"]
    assert service.space.members.keys() == {BOB}


def test_refusals_are_not_in_the_history(service: SpaceService) -> None:
    connection, bob = joined(service, BOB)
    before = service.log.position
    service.receive(connection, BOB, read_draft({"kind": "participant/clear"}))
    service.send_error(connection, "invalid_json", "no", correlation_id="7")
    assert kinds(bob)[1:] == ["system/error", "system/error"]
    assert service.log.position == before


def test_a_rejected_connection_gets_an_error_and_is_closed(service: SpaceService) -> None:
    connection, channel = service.new_connection(), RecordingChannel()
    service.attach(connection, channel)
    service.reject(connection, "unauthorized", "no", 4401, None)
    assert kinds(channel) == ["system/error"]
    assert channel.closed == (4401, "unauthorized")
    service.leave(connection)
    service.reject(connection, "unauthorized", "nobody there", 4401, None)


def test_frames_are_relayed_unchanged(service: SpaceService) -> None:
    coder, _ = joined(service, CODER)
    _, bob = joined(service, BOB)
    for more in ({}, {"target": ["bob"]}):
        payload = {"direction": "upload", **more}
        service.receive(coder, CODER, read_draft({"kind": "stream/request", "payload": payload}))
    service.storage.submit(FrameArrives(coder, CODER, StreamFrame("stream-1", b"#stream-1#\xff")))
    service.storage.submit(FrameArrives(coder, CODER, StreamFrame("stream-2", "#stream-2#x")))
    assert bob.written[-2:] == [b"#stream-1#\xff", "#stream-2#x"]


def test_an_http_sender_follows_the_same_rules(service: SpaceService) -> None:
    _, ada = joined(service, ADA)
    receipt = service.receive(None, BOB, chat("by http")).receipt
    assert receipt.accepted is not None
    assert kinds(ada)[-1] == "chat"


def test_a_slow_consumer_gets_an_error_and_leaves(service: SpaceService) -> None:
    ada_connection, ada = joined(service, ADA)
    bob_connection, bob = joined(service, BOB)
    bob.stop_writing()
    service.mark_slow(bob_connection)
    service.receive(ada_connection, ADA, chat("one"))
    assert kinds(bob)[-1] == "system/error"
    assert json.loads(bob.written[-1])["payload"]["error"] == "slow_consumer"
    assert bob.closed == (4408, "slow_consumer")
    assert kinds(ada)[-2:] == ["chat", "system/presence"]
    service.mark_slow(bob_connection)
    service.receive(ada_connection, ADA, chat("two"))
    assert kinds(ada)[-1] == "chat"
    assert service.load().slow_consumers == 1


def test_hundreds_of_consumers_that_become_slow_at_once_leave_in_turn() -> None:
    names = [ParticipantId(f"p{number}") for number in range(200)]
    people = "".join(f"  {name}: {{command: a, capabilities: [{{kind: chat}}]}}\n" for name in names)
    config = parse_space(f"space: {{id: a}}\nparticipants:\n{people}")
    service = SpaceService(config, TokenBook(), space_log=SpaceLog(epoch="e", bounds=history_bounds(config)))
    _, reader = joined(service, names[0])
    for name in names[1:]:
        connection = service.new_connection()
        service.attach(connection, SlowChannel(partial(service.mark_slow, connection)))
        service.join(connection, name)
    service.receive(None, names[0], chat(SlowChannel.LAST))
    assert list(service.space.members) == [names[0]]
    assert kinds(reader).count("system/presence") == 2 * 199


def test_joined_writes_keep_the_order_of_broadcasts_answers_and_closes(service: SpaceService) -> None:
    ada_connection, ada = joined(service, ADA)
    bob_connection, bob = joined(service, BOB)
    turn: list[Callable[[], object]] = []
    service.join_writes(turn.append)
    before = len(ada.written)
    service.receive(ada_connection, ADA, chat("one"))
    assert len(ada.written) == before
    service.receive(bob_connection, BOB, read_draft({"kind": "mcp/request", "payload": {"method": "x"}}))
    assert kinds(bob)[-2:] == ["chat", "system/error"]
    service.receive(bob_connection, BOB, chat("two"))
    service.receive(ada_connection, ADA, read_draft({"kind": "space/kick", "payload": {"participant_id": BOB}}))
    assert kinds(bob)[-4:] == ["chat", "system/error", "chat", "space/kick"]
    assert bob.closed is not None
    service.receive(ada_connection, ADA, chat("three"))
    while turn:
        turn.pop(0)()
    assert kinds(ada)[-5:] == ["chat", "chat", "space/kick", "system/presence", "chat"]
    assert json.loads(ada.written[-1])["payload"] == {"text": "three"}


def test_a_consumer_slow_after_a_turn_is_disconnected(service: SpaceService) -> None:
    ada_connection, ada = joined(service, ADA)
    bob_connection = service.new_connection()
    bob = SlowChannel(lambda: service.mark_slow(bob_connection))
    service.attach(bob_connection, bob)
    service.join(bob_connection, BOB)
    turn: list[Callable[[], object]] = []
    service.join_writes(turn.append)
    for text in ("one", SlowChannel.LAST, "three"):
        service.receive(ada_connection, ADA, chat(text))
    while turn:
        turn.pop(0)()
    assert kinds(bob)[-3:] == ["chat", "chat", "system/error"]
    assert bob.closed == (4408, "slow_consumer")
    assert kinds(ada)[-4:] == ["chat", "chat", "chat", "system/presence"]


def test_expire_ends_streams_of_absent_owners(service: SpaceService, clock: Clock) -> None:
    _, ada = joined(service, ADA)
    coder, _ = joined(service, CODER)
    service.receive(coder, CODER, read_draft({"kind": "stream/request", "payload": {"direction": "upload"}}))
    service.leave(coder)
    service.expire()
    assert kinds(ada)[-1] == "system/presence"
    clock.now += timedelta(seconds=10)
    service.expire()
    assert kinds(ada)[-1] == "stream/close"
    assert service.uptime_seconds() == 10


def test_an_old_envelope_cannot_be_read_even_if_none_follows_it(config: SpaceConfig, clock: Clock) -> None:
    history = config.history.model_copy(update={"age_seconds": 60.0})
    aged = config.model_copy(update={"history": history})
    service = SpaceService(aged, TokenBook.generate(aged), clock=clock)
    connection, _ = joined(service, ADA)
    service.receive(connection, ADA, chat("old"))
    begin = service.log.start
    service.expire()
    assert service.log.since(begin)
    clock.now += timedelta(seconds=61)
    service.expire()
    assert (service.log.since(begin), service.log.last(9)) == (None, ())
    assert service.log.since(service.log.position) == ()


def test_the_board_lists_every_configured_participant(service: SpaceService) -> None:
    joined(service, BOB)
    board = service.board()
    assert [(one.id, one.connected) for one in board.participants] == [
        ("bob", True),
        ("ada", False),
        ("coder", False),
        ("files", False),
    ]


def said(service: SpaceService, sender: ParticipantId, kind: str, **payload: Any) -> Any:
    service.connect_virtual(sender)
    return service.receive(None, sender, read_draft({"kind": kind, "payload": payload})).receipt


def in_folder(config: SpaceConfig, folder: Path) -> SpaceService:
    """A space with a history in memory, and a folder for what outlasts it."""
    log = SqliteLog(folder / "log", bounds=Bounds(100, 100_000), durability="memory")
    return SpaceService(config, TokenBook.load(config, folder, environ={}), space_log=log, state=folder)


def test_invitations_and_removals_survive_a_restart(config: SpaceConfig, tmp_path: Path) -> None:
    first = in_folder(config, tmp_path)
    coder = first.tokens.token_of("coder")
    capabilities = [{"kind": "chat"}]
    token = said(first, ADA, "space/invite", participant_id="eve", initial_capabilities=capabilities).answer["token"]
    said(first, ADA, "space/invite", participant_id="mallory")
    for name in ("coder", "mallory"):
        said(first, ADA, "space/kick", participant_id=name)
    assert first.tokens.identify(coder) is None
    first.close()
    second = in_folder(config, tmp_path)
    assert second.tokens.identify(token) == "eve"
    assert said(second, ParticipantId("eve"), "chat", text="hi").accepted is not None
    for gone in ("token-of-coder", coder, second.tokens.token_of("coder")):
        assert second.tokens.identify(gone) is None
    again = said(second, ADA, "space/invite", participant_id="coder").answer["token"]
    second.close()
    third = in_folder(config, tmp_path)
    assert third.tokens.identify(again) == "coder"
    third.close()


def test_the_last_figure_of_a_removed_participant_is_stored(config: SpaceConfig) -> None:
    service = SpaceService(config, TokenBook.generate(config))
    assert said(service, CODER, "participant/status", tokens=900, messages_in_context=1).accepted is not None
    said(service, ADA, "space/kick", participant_id="coder")
    service.figures.write()
    (kept,) = service.figures.read("demo", seconds=3_600, limit=10).participants
    assert (kept.id, [one.tokens for one in kept.samples]) == ("coder", [900])


def test_a_removal_also_closes_superseded_sockets(service: SpaceService) -> None:
    _, older = joined(service, CODER)
    _, newer = joined(service, CODER)
    said(service, ADA, "space/kick", participant_id="coder")
    assert older.closed == newer.closed == (4403, "removed")
    assert service.tokens.identify("token-of-coder") is None


def test_an_invitation_or_removal_that_cannot_be_stored_is_refused(config: SpaceConfig, tmp_path: Path) -> None:
    service = in_folder(config, tmp_path)
    bobs_token = service.tokens.token_of("bob")
    log = service.log
    assert isinstance(log, SqliteLog)
    log._database.execute("PRAGMA query_only = ON")
    for kind, participant in (("space/invite", "eve"), ("space/kick", "bob")):
        refused = said(service, ADA, kind, participant_id=participant).refused
        assert refused is not None
        assert refused.error == "not_stored"
        assert said(service, ParticipantId("bob"), "chat", text="hi").accepted is not None  # kept in memory
    assert "eve" not in service.space.membership.names
    assert service.tokens.identify(bobs_token) == "bob"
    log._database.execute("PRAGMA query_only = OFF")
    assert said(service, ADA, "space/kick", participant_id="bob").accepted is not None
    service.close()
    again = in_folder(config, tmp_path)
    assert again.tokens.identify(bobs_token) is None
    again.close()


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that relative paths of logs start from."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "logs"


def with_logs() -> SpaceService:
    config = parse_space(
        """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}]}
  early: {output_log: ./logs/early.log, auto_connect: true}
  lazy: {output_log: ./logs/lazy.log, command: mew}
"""
    )
    return SpaceService(config, TokenBook.generate(config), writer=LogWriter())


def kinds_in(path: Path) -> list[str]:
    return [json.loads(line)["kind"] for line in path.read_text().splitlines()]


def test_a_log_file_connects_at_start_or_with_its_first_message(logs: Path) -> None:
    service = with_logs()
    service.connect_virtual_participants()
    _, ada = joined(service, ADA)
    assert service.connections == 2
    assert not (logs / "lazy.log").exists()
    said(service, ParticipantId("lazy"), "chat", text="one")
    said(service, ParticipantId("lazy"), "participant/clear")
    said(service, ADA, "chat", text="two")
    service.close()
    assert kinds_in(logs / "early.log") == ["system/welcome", "system/presence", "chat", "chat"]
    assert kinds_in(logs / "lazy.log") == ["system/welcome", "chat", "system/error", "chat"]
    assert kinds(ada) == ["system/welcome", "chat", "chat"]


def test_a_socket_and_a_log_file_join_independently(logs: Path) -> None:
    service = with_logs()
    said(service, ParticipantId("lazy"), "chat", text="one")
    connection, channel = joined(service, ParticipantId("lazy"))
    _, newer = joined(service, ParticipantId("lazy"))
    said(service, ADA, "chat", text="two")
    service.leave(connection)
    said(service, ADA, "chat", text="three")
    service.close()
    assert kinds(channel) == ["system/welcome", "system/error"]
    assert kinds(newer) == ["system/welcome", "chat", "chat"]
    texts = [json.loads(line)["payload"].get("text") for line in (logs / "lazy.log").read_text().splitlines()]
    assert [text for text in texts if text] == ["one", "two", "three"]


def test_a_removal_disconnects_the_log_file(logs: Path) -> None:
    service = with_logs()
    service.connect_virtual_participants()
    said(service, ADA, "space/kick", participant_id="early")
    said(service, ADA, "chat", text="unheard")
    service.connect_virtual_participants()
    service.close()
    assert kinds_in(logs / "early.log") == ["system/welcome", "space/kick"]
    assert not service.performer.owners


def test_a_drained_gateway_writes_its_log_files_to_the_end(logs: Path) -> None:
    service = with_logs()
    service.connect_virtual_participants()
    connection, ada = joined(service, ADA)
    assert service.close_connections(20) == 1
    assert ada.closed == (1012, "")
    said(service, ADA, "chat", text="late")
    service.leave(connection)
    assert service.close_connections(20) == 0
    service.close()
    assert kinds_in(logs / "early.log") == ["system/welcome", "system/presence", "chat", "system/presence"]


def test_an_unwritable_log_file_stops_no_participant(logs: Path, caplog: pytest.LogCaptureFixture) -> None:
    logs.write_text("a file where a folder should be")
    service = with_logs()
    assert said(service, ParticipantId("lazy"), "chat", text="one").accepted is not None
    assert "output_log of lazy: cannot be written" in caplog.text


def test_old_envelopes_leave_a_history_in_memory(clock: Clock) -> None:
    config = parse_space(
        "space: {id: a}\nhistory: {durability: memory, age_seconds: 60}\n"
        "participants: {ada: {capabilities: [{kind: chat}]}}"
    )
    service = SpaceService(config, TokenBook.generate(config), clock=clock)
    for text in ("old", "new"):
        service.receive(None, ADA, read_draft({"kind": "chat", "payload": {"text": text}}))
        clock.now += timedelta(seconds=90)
    assert [json.loads(entry.data)["payload"] for entry in service.log.last(10)] == [{"text": "new"}]


async def test_recorded_compactions_are_put_into_words_in_a_thread(
    config: SpaceConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = SpaceService(config, TokenBook.generate(config))
    last = {"at": wire_timestamp(service.now()), "trigger": "threshold", "basis": "projected"}
    context = {"basis": "reported", "level": "healthy", "severity": 0, "last_compaction": last}
    said(service, CODER, "participant/status", tokens=900, messages_in_context=1, context=context)
    service.figures.write()
    threads: list[int] = []

    def line(_: changes.Change) -> str:
        threads.append(get_ident())
        return "in words"

    monkeypatch.setattr(changes, "line", line)
    (plain,) = (await service.figures_of(3_600, 10, None)).participants
    assert (len(plain.compactions), threads) == (1, [])
    (shown,) = (await service.figures_of(3_600, 10, None, with_words=True)).participants
    assert shown.compactions[0].model_dump()["line"] == "in words"
    assert len(threads) == 1
    assert get_ident() not in threads
