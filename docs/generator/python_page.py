"""Lists every public name of `mew_agent` under headings, for mkdocstrings to fill in.

Owns which heading a name belongs to, by the module that defines it. A name that belongs nowhere is an error.
"""

from collections.abc import Iterator

import mew_agent

INTRODUCTION = """# Python

Import everything on this page from `mew_agent`. For programs to start from, see
[Write a participant in Python](../how-to/python.md).
"""

HEADINGS: dict[str, tuple[str, ...]] = {
    "Participants": (
        "mew_agent.participant.participant",
        "mew_agent.participant.peers",
        "mew_agent.participant.client",
        "mew_agent.participant.receipts",
        "mew_protocol.payloads.read_receipts",
        "mew_agent.program",
    ),
    "Tools and resources": ("mew_agent.tools", "mew_agent.participant"),
    "Spaces": ("mew_agent.space",),
    "Agents": ("mew_agent.agent", "mew_agent.config", "mew_agent.conversation", "mew_agent.settings", "mew_settings"),
    "Events of a space": ("mew_agent.participant.event_handlers", "mew_agent.participant.proposals"),
    "Parts of an answer": ("mew_agent.participant.answers",),
    "Events of an agent's context": ("mew_agent.conversation.conversation_events", "mew_agent.context.policy"),
    "Approval": ("mew_agent.parts.simple_agents",),
    "Models and sessions": ("mew_agent.model", "mew_agent.context", "mew_agent.tokens"),
    "Wire": ("mew_protocol",),
    "Errors": ("mew_agent.errors",),
}
"""Modules or packages of each heading; the longest that fits a name counts."""

_WITH_INHERITED = ("Participant", "ContextReported", "PeerLevelChanged")
OPTIONS = {**dict.fromkeys(_WITH_INHERITED, "{inherited_members: true}"), "AgentConfig": "{members: false}"}


def python_page() -> str:
    """The page `reference/python.md`."""
    parts = [INTRODUCTION]
    for heading in HEADINGS:
        parts += [f"## {heading}", ""]
        for name in (name for name, its in _placed() if its == heading):
            options = [f"    options: {OPTIONS[name]}"] if name in OPTIONS else []
            parts += [f"::: mew_agent.{name}", *options, ""]
    return "\n".join(parts)


def _placed() -> Iterator[tuple[str, str]]:
    """Each public name with its heading. Raises `LookupError` for a name without one."""
    for name in dir(mew_agent):
        if name.startswith("_"):
            continue
        home = _home(name)
        fitting = [
            (len(room), heading)
            for heading, rooms in HEADINGS.items()
            for room in rooms
            if home == room or home.startswith(f"{room}.")
        ]
        if not fitting:
            raise LookupError(f"mew_agent.{name} is defined in {home}, which has no heading in {__file__}")
        yield name, max(fitting)[1]


def _home(name: str) -> str:
    """The module that defines a name. A type alias does not know it, so it is the module that it is imported from."""
    home = getattr(getattr(mew_agent, name), "__module__", "")
    return home if home.startswith("mew_") else mew_agent._HOMES[name]
