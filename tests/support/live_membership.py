"""A membership that applies at once what its methods only propose, as if each change were stored."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from mew_spaces.config.settings import SpaceConfig
from mew_spaces.core.membership import Membership
from mew_spaces.core.proposals import Proposals
from mew_spaces.core.state import Change, SpaceState


class LiveProposals(Proposals):
    """Those of a `LiveMembership`."""

    def apply(self, *changes: Change) -> None:
        """Change the state."""
        self._membership.apply(*changes)
        self.apply_surplus()


class LiveMembership(Membership):
    """See the module."""

    def __init__(self, config: SpaceConfig, state: SpaceState) -> None:
        super().__init__(config, state)
        self.proposals = LiveProposals(self, ignore_to=config.capabilities.ignore_to)


def _applying(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def applied(self: LiveMembership | LiveProposals, *args: Any, **options: Any) -> Any:
        result = method(self, *args, **options)
        is_pair = len(result) == 2 and not isinstance(result[0], Change)
        self.apply(*(result[0] if is_pair else result))
        return result

    return applied


for _name in [
    "drop_grants",
    "end_shutdown",
    "end_unfounded",
    "grant",
    "invite",
    "pause",
    "remove",
    "resume",
    "revoke",
    "shift_pauses",
    "shut_down",
]:
    setattr(LiveMembership, _name, _applying(getattr(Membership, _name)))
for _name in ["add", "close_of", "decide"]:
    setattr(LiveProposals, _name, _applying(getattr(Proposals, _name)))


def post(board: Any, envelope: Any, *, at: Any) -> Any:
    """Let a board receive a status, as if it were stored. Returns the receipt; None if it is only passed on."""
    receipt = board.receive(envelope, now=at)
    if receipt is None or receipt.accepted is not None:
        for effect in receipt.effects[:1] if receipt is not None else ():
            board._state.apply(*effect.changes)
        board.record(envelope, is_kept=receipt is not None)
    return receipt
