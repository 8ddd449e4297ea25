"""[pure] The streams of one space: their opening, owners, writers and closing. `stream/*` envelopes in, effects out.

Receives envelopes that their senders' capabilities allow. Open streams are part of the durable state. `space_core`
relays stream frames, which are not envelopes.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from mew_protocol import errors, kinds
from mew_protocol.envelope import Envelope, wire_timestamp
from mew_protocol.errors import PayloadError
from mew_protocol.ids import STREAM_GATEWAY, ParticipantId
from mew_protocol.payloads import read_payload
from mew_protocol.payloads.stream import StreamRequest, TransferOwnership, WriteGrant

from mew_spaces.config.settings import COMPAT_HINT, SpaceConfig
from mew_spaces.core.effects import Broadcast, Effect, Receipt, StateChanged, accept, refuse
from mew_spaces.core.membership import Membership
from mew_spaces.core.state import Change, Changes, Stream
from mew_spaces.core.system_messages import SystemMessages

_GATEWAY_KEYS = frozenset({"stream_id", "owner", "authorized_writers", "created", "encoding"})
"""Keys of a stream's description that only the gateway writes; a request cannot set them."""


class StreamRules:
    """The stream rules of one space."""

    def __init__(self, membership: Membership, messages: SystemMessages, config: SpaceConfig) -> None:
        self._state = membership.state
        self._connected = membership.connected
        self._messages = messages
        self._streams_per_member = config.limits.streams_per_member
        self._needs_direction = not config.is_reference

    def receive(self, envelope: Envelope, *, now: datetime) -> Receipt | None:
        """Handle a `stream/*` envelope. Returns None if it is only relayed."""
        try:
            match envelope.kind:
                case kinds.STREAM_REQUEST:
                    return self._open(envelope, now)
                case kinds.STREAM_CLOSE:
                    return self._close(envelope)
                case kinds.STREAM_GRANT_WRITE | kinds.STREAM_REVOKE_WRITE:
                    return self._change_writers(envelope, now)
                case kinds.STREAM_TRANSFER_OWNERSHIP:
                    return self._transfer(envelope, now)
                case _:
                    return None
        except PayloadError as problem:
            return refuse(errors.INVALID_PAYLOAD, str(problem), code=errors.VALIDATION_ERROR)

    def end_streams_of(self, participant: ParticipantId, *, now: datetime) -> tuple[Changes, tuple[Effect, ...]]:
        """Close a departed participant's streams, and end its rights to write to others."""
        to = tuple(name for name in self._connected if name != participant)
        compose = partial(self._messages.compose, now=now, to=to, sender=STREAM_GATEWAY)
        changes: list[Change] = []
        effects: list[Effect] = []
        for stream in tuple(self._state.streams.values()):
            if stream.owner == participant:
                changes.append(Change("streams", stream.id))
                payload = {"stream_id": stream.id, "reason": "owner_disconnected"}
                # Readers that know a stream only by its request or its opening find it by these ids.
                correlation_id = (*sorted(stream.names), stream.id)
                effects.append(Broadcast(compose(kinds.STREAM_CLOSE, payload, correlation_id=correlation_id)))
            elif participant in stream.writers:
                kept = stream.model_copy(update={"writers": _without(stream.writers, participant)})
                changes.append(Change("streams", stream.id, kept))
                about = {"participant_id": participant, "reason": "participant_disconnected"}
                effects.append(Broadcast(self._writers_changed(kinds.STREAM_WRITE_REVOKED, kept, about, now, to=to)))
        return tuple(changes), tuple(effects)

    def _open(self, envelope: Envelope, now: datetime) -> Receipt:
        """Open a stream; the sender of the request owns it and is its first writer."""
        request = read_payload(envelope, StreamRequest)
        if self._needs_direction and not request.direction:
            text = f"{envelope.kind}: payload.direction is missing; expected upload or download; {COMPAT_HINT}"
            return refuse(errors.INVALID_PAYLOAD, text, code=errors.VALIDATION_ERROR)
        targets = tuple(dict.fromkeys(request.target or ()))
        absent = tuple(name for name in targets if name not in self._connected)
        if absent:  # the TypeScript gateway passes such a request on instead (docs/reference/wire.md, row 12)
            return refuse(errors.TARGET_NOT_FOUND, f"not in this space: {', '.join(absent)}", targets=absent)
        owned = sum(stream.owner == envelope.sender for stream in self._state.streams.values())
        if owned >= self._streams_per_member:
            text = f"you own {owned} open streams, which is the limit; close one first"
            return refuse(errors.LIMIT_EXCEEDED, text)
        owner, number = ParticipantId(envelope.sender), self._state.streams_opened + 1
        name = f"stream-{number}"
        payload: dict[str, Any] = {
            "stream_id": name,
            "encoding": "text",
            "owner": owner,
            "authorized_writers": [owner],
            **({"target": list(targets)} if targets else {}),
        }
        opened = self._messages.compose(
            kinds.STREAM_OPEN, payload, now=now, to=(owner,), correlation_id=(envelope.id,), sender=STREAM_GATEWAY
        )
        stream = Stream(
            number=number,
            owner=owner,
            writers=(owner,),
            targets=targets,
            created=wire_timestamp(now),
            metadata={key: value for key, value in envelope.body.items() if key not in _GATEWAY_KEYS},
            names=frozenset({envelope.id, opened.id}),
        )
        change = Change("streams", name, stream)
        answer = {"status": "stream_opened", "stream_id": name}
        return accept(envelope, StateChanged((change,)), Broadcast(opened), answer=answer)

    def _close(self, envelope: Envelope) -> Receipt | None:
        # TypeScript clients also close a stream by the ids of its request or opening, without its name.
        stream = self._find((envelope.body.get("stream_id"), *envelope.correlation_ids))
        if stream is None:
            return None  # passed on: two members may close a stream at the same time
        if envelope.sender not in (stream.owner, *stream.writers):
            text = f"only the owner and the writers of '{stream.id}' may close it"
            return refuse(errors.UNAUTHORIZED, text, stream_id=stream.id)
        return accept(envelope, StateChanged((Change("streams", stream.id),)))

    def _change_writers(self, envelope: Envelope, now: datetime) -> Receipt:
        payload = read_payload(envelope, WriteGrant)
        is_grant = envelope.kind == kinds.STREAM_GRANT_WRITE
        stream = self._owned_stream(envelope, payload.stream_id, payload.participant_id if is_grant else None)
        if isinstance(stream, Receipt):
            return stream
        participant = ParticipantId(payload.participant_id)
        if not is_grant and participant == stream.owner:
            text = "the owner can always write; transfer the stream to another owner instead"
            return refuse(errors.INVALID_OPERATION, text, stream_id=stream.id)
        others = _without(stream.writers, participant)
        writers = (*others, participant) if is_grant else others
        changed = stream.model_copy(update={"writers": writers})
        about = {"participant_id": participant}
        if is_grant:
            return self._change(envelope, changed, kinds.STREAM_WRITE_GRANTED, "granted", about, now)
        return self._change(envelope, changed, kinds.STREAM_WRITE_REVOKED, "revoked", about, now)

    def _transfer(self, envelope: Envelope, now: datetime) -> Receipt:
        """Make another participant the owner: it may write, and the previous owner may not."""
        payload = read_payload(envelope, TransferOwnership)
        stream = self._owned_stream(envelope, payload.stream_id, payload.new_owner)
        if isinstance(stream, Receipt):
            return stream
        new_owner = ParticipantId(payload.new_owner)
        writers = (new_owner, *_without(stream.writers, stream.owner, new_owner))
        changed = stream.model_copy(update={"owner": new_owner, "writers": writers})
        about = {"previous_owner": stream.owner, "new_owner": new_owner}
        return self._change(envelope, changed, kinds.STREAM_OWNERSHIP_TRANSFERRED, "transferred", about, now)

    def _owned_stream(self, envelope: Envelope, stream_id: str, beneficiary: str | None) -> Stream | Receipt:
        """Return the stream that the sender owns, or the refusal. `beneficiary` must be in the space."""
        stream = self._state.streams.get(stream_id)
        if stream is None:
            return refuse(errors.STREAM_NOT_FOUND, f"no open stream '{stream_id}'")
        if envelope.sender != stream.owner:
            text = f"only the owner, '{stream.owner}', may do that"
            return refuse(errors.UNAUTHORIZED, text, stream_id=stream.id)
        if beneficiary is not None and beneficiary not in self._connected:
            text = f"'{beneficiary}' is not in this space"
            return refuse(errors.PARTICIPANT_NOT_FOUND, text, stream_id=stream.id)
        return stream

    def _change(
        self, envelope: Envelope, changed: Stream, kind: str, status: str, about: dict[str, Any], now: datetime
    ) -> Receipt:
        """Change a stream. Broadcasts the acknowledgement, not the request, as the TypeScript gateway does."""
        change = Change("streams", changed.id, changed)
        reason = {} if envelope.body.get("reason") is None else {"reason": envelope.body["reason"]}
        acknowledgement = self._writers_changed(kind, changed, {**about, **reason}, now, (envelope.id,))
        told = {key: value for key, value in acknowledgement.body.items() if key not in ("participant_id", "reason")}
        answer = {"status": status, **told}
        return Receipt((StateChanged((change,)), Broadcast(acknowledgement)), accepted=envelope, answer=answer)

    def _writers_changed(
        self,
        kind: str,
        changed: Stream,
        about: Mapping[str, Any],
        now: datetime,
        correlation_id: tuple[str, ...] | None = None,
        *,
        to: tuple[str, ...] | None = None,
    ) -> Envelope:
        """Announce a stream's writers, to every member by name unless `to` is given."""
        payload = {"stream_id": changed.id, **about, "authorized_writers": list(changed.writers)}
        return self._messages.compose(
            kind,
            payload,
            now=now,
            to=tuple(self._connected) if to is None else to,
            correlation_id=correlation_id or (*sorted(changed.names), changed.id),
            sender=STREAM_GATEWAY,
        )

    def _find(self, names: Iterable[object]) -> Stream | None:
        """Return the open stream with one of these ids: its own, or that of its opening or request."""
        for name in names:
            if isinstance(name, str):  # the payload may have any values
                for stream in self._state.streams.values():
                    if name == stream.id or name in stream.names:
                        return stream
        return None


def _without(writers: tuple[ParticipantId, ...], *names: str) -> tuple[ParticipantId, ...]:
    return tuple(writer for writer in writers if writer not in names)
