"""[pure] What may be done to streams by envelope, and what is said about it: `stream/*` in, effects out.

State is in `streams`. What a participant may send at all was decided before an envelope comes here.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from mew_protocol import errors, kinds
from mew_protocol.envelope import Envelope
from mew_protocol.errors import PayloadError
from mew_protocol.ids import STREAM_GATEWAY, ParticipantId
from mew_protocol.payloads import read_payload
from mew_protocol.payloads.stream import StreamRequest, TransferOwnership, WriteGrant

from mew_spaces.core.effects import Broadcast, Effect, Receipt, refusal
from mew_spaces.core.members import Members
from mew_spaces.core.streams import Streams
from mew_spaces.core.system_messages import Voice


class StreamRules:
    """The rules of one space's streams."""

    def __init__(
        self,
        streams: Streams,
        members: Members,
        voice: Voice,
        *,
        streams_per_member: int,
    ) -> None:
        self._streams = streams
        self._members = members
        self._voice = voice
        self._streams_per_member = streams_per_member

    def receive(self, envelope: Envelope, *, now: datetime) -> Receipt:
        """Do what a `stream/*` envelope asks. Kinds that only tell something are passed on."""
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
                    return Receipt((Broadcast(envelope),), accepted=envelope)
        except PayloadError as problem:
            return refusal(errors.INVALID_PAYLOAD, str(problem), code=errors.VALIDATION_ERROR)

    def forget(self, participant: ParticipantId, *, now: datetime) -> tuple[Effect, ...]:
        """Close the streams of somebody who is gone for good, and take its right to write elsewhere."""
        effects: list[Effect] = []
        for stream in self._streams:
            if stream.owner == participant:
                self._streams.close(stream.id)
                payload = {"stream_id": stream.id, "reason": "owner_disconnected"}
                about = (*sorted(stream.names), stream.id)
                effects.append(Broadcast(self._say(kinds.STREAM_CLOSE, payload, now, about)))
            elif participant in stream.writers:
                self._streams.stop_writing(stream, participant)
        return tuple(effects)

    def _open(self, envelope: Envelope, now: datetime) -> Receipt:
        targets = tuple(dict.fromkeys(read_payload(envelope, StreamRequest).target or ()))
        absent = tuple(name for name in targets if name not in self._members)
        if absent:
            return refusal(errors.TARGET_NOT_FOUND, f"not in this space: {', '.join(absent)}", targets=absent)
        if len(self._streams.owned_by(envelope.sender)) >= self._streams_per_member:
            return refusal(errors.LIMIT_EXCEEDED, f"you own {self._streams_per_member} open streams already")
        stream = self._streams.open(envelope, targets=targets, now=now)
        payload_open: dict[str, Any] = {
            "stream_id": stream.id,
            "encoding": "text",
            "owner": stream.owner,
            "authorized_writers": list(stream.writers),
        }
        if targets:
            payload_open["target"] = list(targets)
        opened = self._say(kinds.STREAM_OPEN, payload_open, now, (envelope.id,), to=(envelope.sender,))
        self._streams.name(stream, opened.id)
        return Receipt(
            (Broadcast(opened), Broadcast(envelope)),
            accepted=envelope,
            answer={"status": "stream_opened", "stream_id": stream.id},
        )

    def _close(self, envelope: Envelope) -> Receipt:
        stream = self._streams.named_by((envelope.body.get("stream_id"), *envelope.correlation_ids))
        if stream is not None:
            if envelope.sender not in (stream.owner, *stream.writers):
                text = f"only its owner and writers may close '{stream.id}'"
                return refusal(errors.UNAUTHORIZED, text, stream_id=stream.id)
            self._streams.close(stream.id)
        return Receipt((Broadcast(envelope),), accepted=envelope)

    def _change_writers(self, envelope: Envelope, now: datetime) -> Receipt:
        asked = read_payload(envelope, WriteGrant)
        is_grant = envelope.kind == kinds.STREAM_GRANT_WRITE
        refused = self._refusal(envelope, asked.stream_id, asked.participant_id if is_grant else None)
        if refused is not None:
            return refused
        stream = self._streams.get(asked.stream_id)
        assert stream is not None
        participant = ParticipantId(asked.participant_id)
        if is_grant:
            stream = self._streams.let_write(stream, participant)
        elif participant == stream.owner:
            text = "the owner always writes; transfer the stream instead"
            return refusal(errors.INVALID_REQUEST, text, stream_id=stream.id)
        else:
            stream = self._streams.stop_writing(stream, participant)
        kind = kinds.STREAM_WRITE_GRANTED if is_grant else kinds.STREAM_WRITE_REVOKED
        return self._acknowledge(
            envelope,
            kind,
            {"stream_id": stream.id, "participant_id": participant, "authorized_writers": list(stream.writers)},
            asked.reason,
            now,
            status="granted" if is_grant else "revoked",
        )

    def _transfer(self, envelope: Envelope, now: datetime) -> Receipt:
        asked = read_payload(envelope, TransferOwnership)
        refused = self._refusal(envelope, asked.stream_id, asked.new_owner)
        if refused is not None:
            return refused
        before = self._streams.get(asked.stream_id)
        assert before is not None
        after = self._streams.give_to(before, ParticipantId(asked.new_owner))
        return self._acknowledge(
            envelope,
            kinds.STREAM_OWNERSHIP_TRANSFERRED,
            {
                "stream_id": after.id,
                "previous_owner": before.owner,
                "new_owner": after.owner,
                "authorized_writers": list(after.writers),
            },
            asked.reason,
            now,
            status="transferred",
        )

    def _refusal(self, envelope: Envelope, stream_id: str, beneficiary: str | None) -> Receipt | None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return refusal(errors.STREAM_NOT_FOUND, f"there is no stream '{stream_id}'")
        if envelope.sender != stream.owner:
            text = f"only its owner, '{stream.owner}', may do that"
            return refusal(errors.UNAUTHORIZED, text, stream_id=stream.id)
        if beneficiary is not None and beneficiary not in self._members:
            text = f"'{beneficiary}' is not in this space"
            return refusal(errors.PARTICIPANT_NOT_FOUND, text, stream_id=stream.id)
        return None

    def _acknowledge(
        self,
        envelope: Envelope,
        kind: str,
        payload: dict[str, Any],
        reason: str | None,
        now: datetime,
        *,
        status: str,
    ) -> Receipt:
        """The acknowledgement takes the place of the request: nobody sees both."""
        said = payload if reason is None else {**payload, "reason": reason}
        acknowledged = self._say(kind, said, now, (envelope.id,))
        answer = {"status": status, **{key: value for key, value in payload.items() if key != "participant_id"}}
        return Receipt((Broadcast(acknowledged),), accepted=envelope, answer=answer)

    def _say(
        self,
        kind: str,
        payload: Mapping[str, Any],
        now: datetime,
        correlation_id: tuple[str, ...],
        *,
        to: tuple[str, ...] = (),
    ) -> Envelope:
        """What the gateway says of streams names everybody it is for, as the reference's does."""
        return self._voice.say(
            kind,
            payload,
            now=now,
            to=to or tuple(self._members),
            correlation_id=correlation_id,
            speaker=STREAM_GATEWAY,
        )
