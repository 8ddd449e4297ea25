"""[pure] The modes of an ACP session, the current mode, and whether the agent asks before it acts.

Reads and sets modes (from `modes` or a session option of the category `mode`), and chooses the first mode of a session.
Sends nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mew_protocol.context_report import AgentMode
from mew_protocol.json_values import object_at, objects_at, text_at

from mew_agent.parts.acp.profiles import AcpProfile

MAX_MODE_CHARS: Final = 200
"""Each status contains the mode."""


@dataclass(frozen=True, slots=True)
class SessionModes:
    """The modes of an agent, and the current one. `option_id` is the option that sets the mode, if there is one."""

    current: str
    offered: tuple[str, ...]
    option_id: str | None = None

    def request_for(self, mode: str) -> tuple[str, dict[str, str]]:
        """Return the method and the parameters that set a mode, without the session's id."""
        if self.option_id is None:
            return "session/set_mode", {"modeId": mode}
        return "session/set_config_option", {"configId": self.option_id, "value": mode}


def modes_in(session: Mapping[str, Any]) -> SessionModes | None:
    """Return the modes in the answer to `session/new` or `session/load`; None without any."""
    modes = object_at(session, "modes")
    if modes.get("currentModeId"):
        offered = tuple(str(one.get("id")) for one in objects_at(modes, "availableModes"))
        return SessionModes(str(modes["currentModeId"])[:MAX_MODE_CHARS], offered)
    option = _mode_option(session)
    if option is None:
        return None
    offered = tuple(str(one.get("value")) for one in objects_at(option, "options"))
    return SessionModes(str(option["currentValue"])[:MAX_MODE_CHARS], offered, str(option.get("id")))


def mode_in(update: Mapping[str, Any]) -> str | None:
    """Return the mode that a `session/update` reports; None if it reports none."""
    match update.get("sessionUpdate"):
        case "current_mode_update":
            return text_at(update, "currentModeId")[:MAX_MODE_CHARS] or None
        case "config_option_update":
            option = _mode_option(update)
            return None if option is None else str(option["currentValue"])[:MAX_MODE_CHARS]
        case _:
            return None


def _mode_option(where: Mapping[str, Any]) -> Mapping[str, Any] | None:
    options = objects_at(where, "configOptions")
    return next((one for one in options if one.get("category") == "mode" and one.get("currentValue")), None)


def first_mode(modes: SessionModes, profile: AcpProfile, configured: str | None) -> str:
    """Return the mode to begin in: the configured one, else one that asks, else the agent's choice.

    The agent may not offer the configured mode.
    """
    if configured is not None:
        return configured
    asking = (one for one in profile.asking_modes if one in modes.offered)
    return modes.current if modes.current in profile.asking_modes else next(asking, modes.current)


def reported_mode(mode: str, profile: AcpProfile, configured: str | None, *, asks_always: bool) -> AgentMode:
    """Return a mode in the form of reports. `asks_always`: the agent asks in every mode."""
    does_ask = asks_always or mode in profile.asking_modes
    return AgentMode(id=mode, asks=does_ask or (False if profile.asking_modes else None), chosen=mode == configured)
