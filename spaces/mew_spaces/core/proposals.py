"""[pure] Who proposed what, so that only its proposer withdraws a proposal. Bounded: the oldest are forgotten."""

from collections.abc import Iterable

from mew_protocol import errors, kinds
from mew_protocol.envelope import Envelope

from mew_spaces.core.effects import Receipt, refusal

MAX_REMEMBERED = 10_000


class Proposals:
    """Proposers by proposal id. Ids repeat when a client restarts, so one id may have several proposers."""

    def __init__(self, *, max_remembered: int = MAX_REMEMBERED) -> None:
        self._proposers: dict[str, tuple[str, ...]] = {}
        self._max_remembered = max_remembered

    def __len__(self) -> int:
        return len(self._proposers)

    def receive(self, envelope: Envelope) -> Receipt | None:
        """Remember a proposal, and refuse to end one that is not named or is another's. None: let it pass."""
        if envelope.kind == kinds.MCP_PROPOSAL:
            self.record(envelope.id, envelope.sender)
        elif envelope.kind in (kinds.MCP_WITHDRAW, kinds.MCP_REJECT):
            about = envelope.correlation_ids
            if not about:
                text = f"{envelope.kind}: correlation_id must name the proposal"
                return refusal(errors.INVALID_ENVELOPE, text, code=errors.VALIDATION_ERROR)
            foreign = self.stranger_to(about, envelope.sender)
            if envelope.kind == kinds.MCP_WITHDRAW and foreign is not None:
                return refusal(
                    errors.UNAUTHORIZED, f"only its proposer withdraws '{foreign}'; mcp/reject says no to it"
                )
        return None

    def record(self, proposal_id: str, proposer: str) -> None:
        """Remember a proposal."""
        known = self._proposers.pop(proposal_id, ())
        self._proposers[proposal_id] = (*(one for one in known if one != proposer), proposer)[-8:]
        if len(self._proposers) > self._max_remembered:
            del self._proposers[next(iter(self._proposers))]

    def stranger_to(self, proposal_ids: Iterable[str], participant: str) -> str | None:
        """The first of these that is known to be only others' proposal. One that nobody remembers is nobody's."""
        for proposal_id in proposal_ids:
            if participant not in self._proposers.get(proposal_id, (participant,)):
                return proposal_id
        return None
