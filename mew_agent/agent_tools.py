"""What an agent's model may call: tools from several sources under one set of names.

A source offers tools and carries their calls out: functions of our own, what peers offer, what steers the context.
Owns which source a name belongs to. It knows no model and no envelopes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from mew_agent.model.interface import ToolCall, ToolSpec
from mew_agent.tools import Toolbox


@dataclass(frozen=True, slots=True)
class Occasion:
    """Why a tool is called: the id of the chat being answered, and of the reasoning that peers see, if they do."""

    chat_id: str
    reasoning_id: str | None = None


class ToolSource(Protocol):
    """Somebody who has tools. Both methods may be called at any time; what is offered may change between calls."""

    def specs(self) -> tuple[ToolSpec, ...]:
        """What the model is told now."""
        ...

    async def observe(self, call: ToolCall, occasion: Occasion) -> str:
        """Carry out one call and say what came of it. Never raises: failures are text that the model can act on."""
        ...


class OwnTools:
    """The functions of a participant's toolbox as a source."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox

    def specs(self) -> tuple[ToolSpec, ...]:
        """See `ToolSource`."""
        return self._toolbox.specs()

    async def observe(self, call: ToolCall, occasion: Occasion) -> str:
        """See `ToolSource`."""
        return await self._toolbox.observe(call.name, call.arguments)


class AgentTools:
    """All sources of one agent. Of two tools of one name, the one whose source was added first is offered."""

    def __init__(self, *sources: ToolSource) -> None:
        self._sources = list(sources)

    def add(self, source: ToolSource) -> None:
        """Offer this source's tools too, behind those that are there."""
        self._sources.append(source)

    def specs(self) -> tuple[ToolSpec, ...]:
        """What the model is told now, in the order of the sources."""
        return tuple(spec for spec, _ in self._offered())

    async def observe(self, call: ToolCall, occasion: Occasion) -> str:
        """Carry out one call. Never raises: an unknown name, too, becomes text that the model can act on."""
        names: list[str] = []
        for spec, source in self._offered():
            if spec.name == call.name:
                return await source.observe(call, occasion)
            names.append(spec.name)
        return f"Error: no tool '{call.name}' (known: {', '.join(names) or 'none'})"

    def _offered(self) -> Iterator[tuple[ToolSpec, ToolSource]]:
        seen: set[str] = set()
        for source in self._sources:
            for spec in source.specs():
                if spec.name not in seen:
                    seen.add(spec.name)
                    yield spec, source
