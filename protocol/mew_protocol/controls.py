"""[pure] Controls: what a participant may be asked by `participant/*`, read alike by who acts and who watches.

Owns whom a control is for. Which kinds there are and what each holds is `payloads.participant.CONTROLS`; carrying one
out is the participant's business, holding a participant to it the gateway's.
"""

from typing import Final

from mew_protocol import kinds
from mew_protocol.envelope import Draft, Envelope
from mew_protocol.payloads import read_payload
from mew_protocol.payloads.participant import CONTROLS, Control

MAY_NAME_NOBODY: Final = frozenset(
    {kinds.PARTICIPANT_PAUSE, kinds.PARTICIPANT_RESUME, kinds.PARTICIPANT_REQUEST_STATUS}
)
"""The harmless ones, which may be meant for everybody; every other control changes a conversation and names its own."""


def read_control(draft: Draft) -> Control | None:
    """What an envelope asks of a participant, None when it is no control. Raises `PayloadError` naming the field."""
    model = CONTROLS.get(draft.kind or "")
    return None if model is None else read_payload(draft, model)


def is_control_for(envelope: Envelope, participant: str) -> bool:
    """Whether a participant is to carry this out: a control that names it, or a harmless one that names nobody.

    What somebody tells everybody, it does not tell itself.
    """
    if envelope.kind in MAY_NAME_NOBODY:
        return envelope.is_for(participant) and envelope.sender != participant
    return envelope.kind in CONTROLS and envelope.names(participant)
