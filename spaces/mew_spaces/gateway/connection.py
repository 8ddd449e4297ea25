"""The states of one client connection: new, joined, ended.

Owns authentication and the order of joining and sending. `service` and the core handle accepted messages. Client input
can only end the client's own connection.
"""

import logging
from collections.abc import Callable
from enum import Enum, auto

from mew_protocol import errors
from mew_protocol.codec import StreamFrame, decode, decode_complete
from mew_protocol.envelope import Draft
from mew_protocol.errors import DecodeError
from mew_protocol.ids import ParticipantId
from mew_protocol.join import DeliveryRequest, JoinRequest, join_request
from mew_protocol.kinds import SYSTEM_HEARTBEAT, SYSTEM_JOIN

from mew_spaces.core.events import FrameArrives
from mew_spaces.gateway.outbound import OutboundChannel, admit
from mew_spaces.gateway.registry import SpaceRegistry, client_of
from mew_spaces.gateway.service import SpaceService

log = logging.getLogger("mew_spaces")

UNJOINED_BUFFER_BYTES = 64 * 1024
"""Write buffer of a client that has not joined; it gets only error messages."""

MAX_UNJOINED_ERRORS = 16
"""How many messages of a client that has not joined are answered with an error before it is disconnected."""


class _Phase(Enum):
    NEW = auto()
    JOINED = auto()
    ENDED = auto()


# Members of an enumeration are slow to look up, and every message needs these.
_JOINED, _ENDED = _Phase.JOINED, _Phase.ENDED


class Connection:
    """A client connection. No method waits."""

    def __init__(
        self, registry: SpaceRegistry, *, bearer: str | None = None, space: str | None = None, address: str = ""
    ) -> None:
        """`bearer` is the token in the handshake's Authorization header, `space` the `space` query parameter, `address`
        the client's IP address."""
        self._registry = registry
        self._service = registry.default
        self._limits = registry.default.config.limits
        self.id = self._service.new_connection()
        self._channel: OutboundChannel | None = None
        self._address = address
        self._bearer = bearer
        self._space = space
        self._participant: ParticipantId | None = None
        self._phase = _Phase.NEW
        self._unjoined_errors = 0
        self._about: str | None = None
        """The id of the envelope that is being handled; answers to it carry it."""
        self.on_decided: Callable[[], None] | None = None
        """Called once, when the connection has joined, was refused or is closed."""

    @property
    def is_joined(self) -> bool:
        """Whether it has authenticated and is in the space."""
        return self._phase is _Phase.JOINED

    @property
    def has_bearer(self) -> bool:
        """Whether it can join without a join frame."""
        return self._bearer is not None

    def attach(self, channel: OutboundChannel) -> None:
        """Set the channel that writes to this connection, with a small buffer until the client has joined."""
        self._channel = channel
        channel.limit_buffer(UNJOINED_BUFFER_BYTES)
        self._service.attach(self.id, channel)

    def receive(self, data: bytes, is_text: bool) -> None:
        """Handle one message, text or binary. Never raises."""
        phase, limits, sender = self._phase, self._limits, self._participant
        max_bytes = limits.message_bytes
        if phase is _ENDED:
            return
        try:
            if phase is _JOINED and sender:  # the common case first: an envelope from a member
                complete = decode_complete(data, max_bytes)
                if complete is not None and complete[0].kind != SYSTEM_JOIN:
                    self._service.receive(self.id, sender, *complete)
                    return
            elif len(data) > limits.unjoined_message_bytes:
                self.too_large()
                self._end_unjoined("a message before the join was too large")
                return
            self._about = None
            # Stream frames are relayed unchanged.
            message = decode(data, is_text=is_text, max_bytes=max_bytes)
            if not isinstance(message, StreamFrame):
                self._handle_draft(message)
            elif (self._phase is _JOINED or self._joins_by_sending()) and self._participant is not None:
                self._service.storage.submit(FrameArrives(self.id, self._participant, message))
        except DecodeError as problem:
            error, text, about = problem.error, problem.detail, problem.envelope_id
            self._service.send_error(self.id, error, text, code=problem.code, correlation_id=about)
            self._count_unjoined_error()
        except Exception:
            log.exception("failed to process a message from %s", self._participant or "a connection")
            self._service.send_error(
                self.id,
                errors.INTERNAL_ERROR,
                "the gateway failed to process this message",
                code=errors.PROCESSING_ERROR,
            )

    def join_by_header(self) -> None:
        """Join with the bearer header, without a join frame."""
        if self._phase is _Phase.NEW:
            self._join(JoinRequest())

    def join_timed_out(self) -> None:
        """Refuse the connection if it has not joined yet."""
        if self._phase is _Phase.NEW:
            self._end(errors.NOT_JOINED, "no join arrived in time; send a join frame first", errors.CLOSE_UNAUTHORIZED)

    def too_large(self) -> None:
        """Report a message above the size limit. The WebSocket protocol closes the connection."""
        limits = self._limits
        joined = self._phase is _Phase.JOINED
        limit = limits.message_bytes if joined else limits.unjoined_message_bytes
        text = f"message too large; the limit is {limit:,} bytes" + ("" if joined else " before the join")
        self._service.send_error(self.id, errors.TOO_LARGE, text)

    def slow(self) -> None:
        """Handle a full write buffer: the client is a slow consumer."""
        self._decide(_Phase.ENDED)
        # Mark only: during a write to all members, a leave would disturb the order of members.
        self._service.mark_slow(self.id)

    def disconnected(self) -> None:
        """Leave the space: the connection is closed. A second call changes nothing."""
        self._decide(_Phase.ENDED)
        self._service.leave(self.id)
        self._channel = None

    def _handle_draft(self, message: Draft) -> None:
        self._about = message.id
        request = join_request(message)
        if request is not None:
            self._join(request)  # even when joined: some clients send the bearer header and a join frame
        elif message.kind == SYSTEM_HEARTBEAT and self._phase is _Phase.NEW:
            return  # the TypeScript gateway drops it, too; an error would count against the client
        elif self._phase is _JOINED or self._joins_by_sending():
            assert self._participant is not None
            self._service.receive(self.id, self._participant, message)

    def _joins_by_sending(self) -> bool:
        """Join a connection with a bearer header at its first message. Returns whether it has joined."""
        if self._phase is _Phase.NEW and self.has_bearer:
            self.join_by_header()
        elif self._phase is _Phase.NEW:
            self._service.send_error(self.id, errors.NOT_JOINED, "join first", correlation_id=self._about)
            self._count_unjoined_error()
        return self._phase is _Phase.JOINED

    def _join(self, request: JoinRequest) -> None:
        token = request.token or self._bearer
        name = request.space or self._space
        home = self._registry.find(name, token)
        # The token comes first: without a valid one, an answer must not show which spaces and participants exist.
        participant = (home or self._service).tokens.identify(token)
        if participant is None:
            self._refuse_token(request, is_given=bool(token))
        elif (problem := self._differs(request, participant, home)) is not None:
            self._end(errors.UNAUTHORIZED, problem, errors.CLOSE_UNAUTHORIZED)
        elif home is None:
            self._end(errors.SPACE_NOT_FOUND, f"no space '{name}' on this gateway", errors.CLOSE_NOT_FOUND)
        elif not self._registry.joins.try_spend(client_of(home, participant)):
            self._refuse_rate(f"'{participant}' joins too often; try again later")
        elif request.delivery is not None and not self.is_joined and (pause := home.join_pace.retry_after_seconds()):
            # Clients that ask for numbered delivery read `retry_after_seconds`; others would take this for a refusal.
            text = f"many participants join at the moment; join again in {pause:.1f} seconds"
            self._end(errors.RATE_LIMITED, text, errors.CLOSE_LIMIT, retry_after=pause)
        else:
            self._enter(home, participant, request.delivery)

    def _enter(self, home: SpaceService, participant: ParticipantId, delivery: DeliveryRequest | None) -> None:
        self._move_to(home)
        self._participant = participant
        self._decide(_Phase.JOINED)
        if self._channel is not None:
            limits = self._limits
            # With room for the largest message, only a backlog makes a client slow.
            room = limits.write_buffer_bytes + limits.message_bytes
            admit(self._channel, client_of(home, participant), buffer_bytes=room)
        self._service.join(self.id, participant, delivery)

    def _refuse_token(self, request: JoinRequest, *, is_given: bool) -> None:
        log.warning("join refused: invalid token from %s", self._address or "an unknown address")
        if not self._registry.failed_tokens.try_spend(self._address):
            text = "too many joins with invalid tokens; try again later"
            self._end(errors.RATE_LIMITED, text, errors.CLOSE_LIMIT)
            return
        claimed = f" for '{request.participant}'" if request.participant else ""
        text = f"the gateway {'refused this token' if is_given else 'needs a token'}{claimed}"
        self._end(errors.UNAUTHORIZED, text, errors.CLOSE_UNAUTHORIZED)

    def _refuse_rate(self, text: str) -> None:
        if self.is_joined:
            self._service.send_error(self.id, errors.RATE_LIMITED, text, correlation_id=self._about)
        else:
            self._end(errors.RATE_LIMITED, text, errors.CLOSE_LIMIT)

    def _differs(self, request: JoinRequest, participant: ParticipantId, home: SpaceService | None) -> str | None:
        """Return the refusal if a token is for another participant or space than the request or this connection."""
        if request.participant not in (None, participant):
            return f"this token belongs to another participant than '{request.participant}'"
        if self._participant not in (None, participant):
            return f"this connection joined as '{self._participant}'; open another connection to join as someone else"
        if home is not None and self.is_joined and home is not self._service:
            return f"this connection joined '{self._service.space.id}'; open another connection to join another space"
        return None

    def _move_to(self, home: SpaceService) -> None:
        """Register with another space. Until it joins, a connection belongs to the default space."""
        if home is not self._service:
            self._service.leave(self.id)
            self._service = home
            self._limits = home.config.limits
            self.id = home.new_connection()
            if self._channel is not None:
                self.attach(self._channel)

    def _end(self, error: str, message: str, code: int, *, retry_after: float | None = None) -> None:
        self._decide(_Phase.ENDED)
        self._service.reject(self.id, error, message, code, retry_after, self._about)

    def _decide(self, phase: _Phase) -> None:
        self._phase = phase
        # Clear it first: the call may close this connection, and closing calls it as well.
        on_decided, self.on_decided = self.on_decided, None
        if on_decided is not None:
            on_decided()

    def _count_unjoined_error(self) -> None:
        if self._phase is _Phase.NEW:
            self._unjoined_errors += 1
            if self._unjoined_errors >= MAX_UNJOINED_ERRORS:
                self._end_unjoined("too many messages before the join; send a join frame first")

    def _end_unjoined(self, message: str) -> None:
        self._end(errors.NOT_JOINED, message, errors.CLOSE_UNAUTHORIZED)
