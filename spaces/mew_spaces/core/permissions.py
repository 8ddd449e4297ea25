"""[pure] The permissions of one participant, and the result of checking an envelope against them."""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from mew_protocol.capability import CapabilityPattern, CapabilitySet
from mew_protocol.envelope import Draft

Source = Literal["static", "dynamic", "implicit"]
"""Where a capability comes from: space.yaml or an invitation, a grant, or the protocol itself."""


class PermissionDecision(NamedTuple):
    """The result of a capability check: the permissions it used, and the pattern that allowed the envelope."""

    permissions: "Permissions"
    matched: CapabilityPattern | None
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Permissions:
    """The permissions of one participant. `patterns` are its capabilities as advertised, also as `patterns_json`."""

    capabilities: CapabilitySet
    patterns: tuple[dict[str, Any], ...]
    patterns_json: bytes
    granted: tuple[dict[str, Any], ...]
    several_connections: bool
    _decisions: dict[int, PermissionDecision] = field(default_factory=dict, repr=False, compare=False)

    def decide(self, draft: Draft, *, ignore_to: bool) -> PermissionDecision:
        """Decide whether an envelope may be sent, by which pattern, and where that pattern comes from."""
        matched = self.capabilities.match(draft, ignore_to=ignore_to)
        decision = self._decisions.get(id(matched))
        if decision is None:
            source: Source | None = None
            if matched is not None:
                source = "dynamic" if matched in self.granted else "static"
            decision = self._decisions[id(matched)] = PermissionDecision(self, matched, source)
        return decision
