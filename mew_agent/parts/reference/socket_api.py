"""A one-shot command's access to a gateway without board, events and history over HTTP, such as the TypeScript one.

Builds the board from the welcome, presences, and the statuses that participants send when asked. Joins as the
participant while a command needs it. Blocks; the connection runs in a thread.
"""

import queue
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final, NoReturn
from uuid import uuid4

from anyio.from_thread import BlockingPortal, start_blocking_portal
from mew_board.attention import aggregate, attention
from mew_protocol import kinds
from mew_protocol.envelope import Envelope, wire_timestamp
from mew_protocol.payloads.attention_items import AttentionItem
from mew_protocol.payloads.participant import Board

from mew_agent.cli.board.board_events import apply_event
from mew_agent.cli.remote.http_api import SILENCE_SECONDS, GatewayApi, ServerSentEvent
from mew_agent.cli.remote.identity import Identity
from mew_agent.errors import ConfigError, GatewayError, NotConnected, NotPermitted
from mew_agent.gateway_address import websocket_url
from mew_agent.gateway_http import MessagePages
from mew_agent.participant.participant import Participant

_CLOSING_SECONDS: Final = 1.0
"""How long a gateway may take to notice that a connection was closed."""

STATUS_SECONDS: Final = 2.0
"""How long to wait for the statuses of a board."""


def api_of_member(who: Identity, api: GatewayApi) -> "SocketApi":
    """Return access as a member to a gateway without a board. Raises `ConfigError` if the participant is connected."""
    _refuse_connected(api)
    return SocketApi(who.gateway, space=who.space, participant=who.participant, token=who.token)


def _refuse_connected(api: GatewayApi) -> None:
    """Refuse to act as a participant that is connected: that gateway would close its connection.

    Our last command's connection may still be closing. Raises `ConfigError`.
    """
    until = time.monotonic() + _CLOSING_SECONDS
    while any(one.get("id") == api.participant for one in api.participants()):
        if time.monotonic() >= until:
            raise ConfigError(
                "--participant",
                f"'{api.participant}' is connected, and joining this gateway as it would end that connection",
                "a person that is not connected",
            )
        time.sleep(0.05)


class SocketEvents:
    """The events of a space over one connection: the board first, then every envelope."""

    def __init__(self, portal: BlockingPortal, me: Participant, gateway: str) -> None:
        """`me` has joined, and puts every envelope into `arrived`."""
        self.arrived: queue.SimpleQueue[Envelope | None] = queue.SimpleQueue()
        self._portal = portal
        self.me = me
        self._gateway = gateway
        self._question = str(uuid4())
        self._board: ServerSentEvent | None = None

    def begin(self) -> None:
        """Note the present participants, and ask them for a status."""
        now = wire_timestamp(datetime.now(UTC))
        present = [{"id": name, "connected": True} for name in (self.me.id, *self.me.peers)]
        self._board = ServerSentEvent("board", {"space": self.me.space, "at": now, "participants": present})
        if self.me.peers:
            with suppress(NotPermitted):
                to = list(self.me.peers)
                self.send({"kind": kinds.PARTICIPANT_REQUEST_STATUS, "id": self._question, "to": to})

    def send(self, envelope: Mapping[str, Any]) -> str:
        """Send an envelope, and return its id. Raises `NotPermitted` and `NotConnected`."""
        draft = self.me.messenger.draft(
            str(envelope["kind"]),
            envelope.get("payload"),
            to=tuple(envelope.get("to") or ()),
            correlation_id=tuple(envelope.get("correlation_id") or ()),
            id=envelope.get("id"),
        )
        self._portal.call(self.me.messenger.send_envelope, draft)
        return draft.id

    def next(self, *, deadline: float | None = None) -> ServerSentEvent:
        """Wait for the next event. Raises `TimeoutError` past `deadline`, a time of `time.monotonic()`."""
        if (board := self._board) is not None:
            self._board = None
            return board
        left = SILENCE_SECONDS if deadline is None else deadline - time.monotonic()
        try:
            envelope = self.arrived.get(timeout=max(0.0, left))
        except queue.Empty:
            if deadline is None:  # a quiet space, not a failure
                return self.next()
            raise TimeoutError from None
        if envelope is None:
            raise NotConnected(self._gateway, "the gateway closed the connection")
        body = envelope.as_dict()
        if envelope.kind == kinds.PARTICIPANT_STATUS and envelope.refers_to(self._question):
            del body["to"]  # requested without a filter, so it is as complete as a broadcast
        return ServerSentEvent("envelope", body)


class SocketApi(GatewayApi):
    """A member's access to one space. Raises `GatewayError` for data that the gateway does not keep."""

    _open: SocketEvents | None = None
    _board: Board | None = None

    @contextmanager
    def events(self, last: int = 0) -> Iterator[SocketEvents]:
        """Join, and yield the space's events from now on, starting with the board; `last` has no effect."""
        with start_blocking_portal() as portal:
            me = Participant(
                websocket_url(self.gateway),
                space=self.space,
                id=self.participant,
                token=self.token,
                reports_context=False,
            )
            events = SocketEvents(portal, me, self.gateway)

            @me.on()
            async def pass_on(envelope: Envelope) -> None:
                events.arrived.put(envelope)

            async def watch() -> None:
                await me.until_ended()
                events.arrived.put(None)

            with portal.wrap_async_context_manager(me):
                watching = portal.start_task_soon(watch)
                events.begin()
                self._open = events
                try:
                    yield events
                finally:
                    self._open = None
                    watching.cancel()

    def board(self) -> Board:
        """Return the board. Waits a moment for the statuses of connected participants."""
        with self.events() as events:
            board, deadline = Board.model_validate(events.next().body), time.monotonic() + STATUS_SECONDS
            silent = {entry.id for entry in board.participants} - {self.participant}
            while silent:
                try:
                    event = events.next(deadline=deadline)
                except TimeoutError:
                    break
                changed, who = apply_event(board, event.name, event.body)
                board = changed or board
                silent.discard(str(who))
        self._board = board
        return board

    def send(self, envelope: Mapping[str, Any]) -> str:
        """Send an envelope as the participant, over the connection of `events` if that is open. Returns its id."""
        if self._open is not None:
            return self._open.send(envelope)
        with self.events() as events:
            return events.send(envelope)

    def participants(self) -> list[dict[str, Any]]:
        """Return the present participants. Their capabilities are those that the gateway announced."""
        with self.events() as events:
            known = {one.id: one.capabilities for one in events.me.peers.values()}
            known[self.participant] = tuple(dict(one) for one in events.me.messenger.capabilities.patterns)
        return [{"id": name, "connected": True, "capabilities": list(held)} for name, held in known.items()]

    def pages(self, pages: MessagePages) -> NoReturn:
        """Raise `GatewayError`: the gateway keeps no messages."""
        raise GatewayError(f"{self.gateway} keeps no messages: it is not a gateway of mew-agent")

    def context_history(self, seconds: int, participant: str | None = None) -> NoReturn:
        """Raise `GatewayError`: the gateway keeps no figures."""
        raise GatewayError(f"{self.gateway} keeps no figures over time: it is not a gateway of mew-agent")

    def attention(self) -> tuple[AttentionItem, ...]:
        """Return the attention items of the last board, without proposals: this gateway keeps none."""
        board = self._board or self.board()
        return aggregate(attention(board.participants, (), now=datetime.now(UTC)))

    def proposals(self) -> NoReturn:
        """Raise `GatewayError`: the gateway keeps no proposals."""
        raise GatewayError(f"{self.gateway} keeps no proposals: it is not a gateway of mew-agent; join it to see them")
