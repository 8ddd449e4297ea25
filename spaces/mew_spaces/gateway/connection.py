"""One socket's life: it opens, proves who it is, speaks, and goes.

Owns the order of these and the time a socket has to join; what a message does once its sender is known is the
space's business. Nothing a client sends ends more than its own connection.
"""

import logging
from enum import Enum, auto

from mew_protocol import errors
from mew_protocol.codec import StreamFrame, decode
from mew_protocol.envelope import Draft, Envelope
from mew_protocol.errors import DecodeError
from mew_protocol.ids import ParticipantId
from mew_protocol.join import JoinRequest, join_request
from mew_protocol.kinds import SYSTEM_HEARTBEAT, SYSTEM_JOIN

from mew_spaces.gateway.outbound import OutboundChannel
from mew_spaces.gateway.registry import SpaceRegistry
from mew_spaces.gateway.service import SpaceService

log = logging.getLogger("spaces")


class _Phase(Enum):
    NEW = auto()
    JOINED = auto()
    ENDED = auto()


_JOINED = _Phase.JOINED


class Connection:
    """A socket as the gateway sees it. Every method returns at once."""

    def __init__(self, registry: SpaceRegistry, *, bearer: str | None = None, space: str | None = None) -> None:
        """`bearer` is the token of the upgrade request's header, `space` what its query asked for."""
        self._registry = registry
        self._service = registry.default
        self._limits = registry.default.config.limits
        self.id = self._service.new_connection()
        self._channel: OutboundChannel | None = None
        self._bearer = bearer
        self._space = space
        self._participant: ParticipantId | None = None
        self._phase = _Phase.NEW
        self._is_gone = False

    @property
    def is_gone(self) -> bool:
        """Whether it is closed for good."""
        return self._is_gone

    @property
    def is_joined(self) -> bool:
        """Whether its identity is proven and it is in the space."""
        return self._phase is _Phase.JOINED

    @property
    def is_ended(self) -> bool:
        """Whether it was refused or is gone."""
        return self._phase is _Phase.ENDED

    @property
    def has_bearer(self) -> bool:
        """Whether it can be let in without another word."""
        return self._bearer is not None

    def attach(self, channel: OutboundChannel) -> None:
        """Name the way out. How much may wait there is what the space allows."""
        self._channel = channel
        channel.limit_buffer(self._limits.write_buffer_bytes + self._limits.message_bytes)
        self._service.attach(self.id, channel)

    def receive(self, data: bytes, is_text: bool) -> None:
        """One message, text or binary. Whatever it holds, this returns."""
        if self._phase is _Phase.ENDED:
            return
        try:
            # Only frames keep the form they came in; an envelope is read from bytes either way.
            raw = _as_text(data) if is_text and data[:1] == b"#" else data
            limits = self._limits
            message = decode(raw, max_bytes=limits.message_bytes, max_depth=limits.json_depth)
            sender = self._participant
            if (
                isinstance(message, Envelope)
                and message.kind != SYSTEM_JOIN
                and self._phase is _JOINED
                and sender is not None
            ):
                # What nearly every message is: something complete that a member says.
                self._service.receive(self.id, sender, message)
            else:
                self._work_on(message)
        except DecodeError as problem:
            self._service.send_error(self.id, problem.error, problem.detail, code=problem.code)
        except Exception:
            log.exception("a message of %s could not be worked on", self._participant or "a connection")
            self._service.send_error(
                self.id, errors.INTERNAL_ERROR, "the gateway failed on this message", code=errors.PROCESSING_ERROR
            )

    def join_by_header(self) -> None:
        """Come in by the bearer header alone."""
        if self._phase is _Phase.NEW:
            self._join(JoinRequest())

    def give_up_waiting(self) -> None:
        """The time to join is over."""
        if self._phase is _Phase.NEW:
            self._end(errors.NOT_JOINED, "no join arrived in time; send a join frame first", errors.CLOSE_UNAUTHORIZED)

    def too_large(self) -> None:
        """It sent a message above the size limit; its protocol closes it."""
        limit = self._service.config.limits.message_bytes
        self._service.send_error(self.id, errors.TOO_LARGE, f"a message holds at most {limit:,} bytes")

    def slow(self) -> None:
        """It does not read what it is sent."""
        self._phase = _Phase.ENDED
        self._service.mark_slow(self.id)

    def gone(self) -> None:
        """It is closed."""
        if self._is_gone:
            return
        self._is_gone = True
        self._phase = _Phase.ENDED
        self._service.leave(self.id)

    def _work_on(self, message: Draft | StreamFrame) -> None:
        if isinstance(message, StreamFrame):
            if self._admitted():
                assert self._participant is not None
                self._service.relay(self.id, self._participant, message)
            return
        request = join_request(message)
        if request is not None:
            self._join(request)
        elif message.kind == SYSTEM_HEARTBEAT and self._phase is _Phase.NEW:
            return
        elif self._admitted(message):
            assert self._participant is not None
            self._service.receive(self.id, self._participant, message)

    def _admitted(self, draft: Draft | None = None) -> bool:
        """Whether it may speak. A socket that came with a token may do so at once."""
        if self._phase is _Phase.NEW and self.has_bearer:
            self.join_by_header()
        elif self._phase is _Phase.NEW:
            about = draft.id if draft is not None else None
            self._service.send_error(self.id, errors.NOT_JOINED, "join first", correlation_id=about)
        return self._phase is _Phase.JOINED

    def _join(self, request: JoinRequest) -> None:
        token = request.token or self._bearer
        name = request.space or self._space
        home = self._registry.find(name, token)
        participant = (home or self._service).tokens.identify(token)
        if participant is None:
            claimed = f" for '{request.participant}'" if request.participant else ""
            what = "refused this token" if token else "needs a token"
            self._end(errors.UNAUTHORIZED, f"the gateway {what}{claimed}", errors.CLOSE_UNAUTHORIZED)
        elif request.participant not in (None, participant):
            text = f"this token is not of '{request.participant}'"
            self._end(errors.UNAUTHORIZED, text, errors.CLOSE_UNAUTHORIZED)
        elif self._participant not in (None, participant):
            text = f"this connection is '{self._participant}' and cannot become another"
            self._end(errors.UNAUTHORIZED, text, errors.CLOSE_UNAUTHORIZED)
        elif home is None:
            self._end(errors.SPACE_NOT_FOUND, f"there is no space '{name}' here", errors.CLOSE_NOT_FOUND)
        elif self.is_joined and home is not self._service:
            text = f"this connection is in '{self._service.space.id}' and cannot move to another space"
            self._end(errors.UNAUTHORIZED, text, errors.CLOSE_UNAUTHORIZED)
        else:
            self._move_to(home)
            self._participant = participant
            self._phase = _Phase.JOINED
            self._service.join(self.id, participant, request.delivery)

    def _move_to(self, home: SpaceService) -> None:
        """Until it joins, a connection waits in the default space."""
        if home is not self._service:
            self._service.leave(self.id)
            self._service = home
            self._limits = home.config.limits
            self.id = home.new_connection()
            if self._channel is not None:
                self.attach(self._channel)

    def _end(self, error: str, message: str, code: int) -> None:
        self._phase = _Phase.ENDED
        self._service.reject(self.id, error, message, code)


def _as_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise DecodeError(errors.INVALID_FRAME, "a text message must be UTF-8; send other bytes as binary") from None
