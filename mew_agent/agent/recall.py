"""A tool with which a model reads results that were cut or cleared, from the store of the session.

Owns when it is offered: as soon as there is something to recall, because before that it would only confuse a model.
"""

from typing import Final

from mew_agent.conversation.context_state import ContextState
from mew_agent.errors import MewAgentError
from mew_agent.model.interface import ToolSpec
from mew_agent.tokens.sizes import in_thread
from mew_agent.tools.bounds import beginning
from mew_agent.tools.sources import FunctionTools

RECALL_RESULT: Final = "recall_result"
HEADING: Final = "[{id}, characters {start:,} to {end:,} of {whole:,}]\n"
SLACK_TOKENS: Final = 8
"""The sizes of two texts do not add up exactly to the size of both together."""


class ResultNotStored(MewAgentError):
    """No result is stored under this id, or the position is past its end."""


class RecallTools(FunctionTools):
    """The source of this tool; see `ToolSource`."""

    def __init__(self, state: ContextState) -> None:
        self._state = state
        self._is_offered = False
        super().__init__(self.recall_result)

    def specs(self) -> tuple[ToolSpec, ...]:
        """See `ToolSource`. Once offered it stays, because prompts with different tools are not comparable."""
        self._is_offered |= self._state.has_cut_results or any(item.stubbed for item in self._state.history.items)
        return super().specs() if self._is_offered else ()

    async def recall_result(self, id: str, start: int = 0, find: str | None = None) -> str:  # noqa: A002 - a model's word
        """Read a part of a tool result that was cut or cleared to save context, by the id in the note about it.

        The part begins at character `start`, or at the first occurrence of the text `find` after it.
        """
        state = self._state
        item = await state.store.recall(id)
        if item is None or item.role != "tool":
            raise ResultNotStored(f"no result is stored as '{id}'")
        whole = item.content
        place = whole.find(find, max(0, start)) if find else max(0, start)
        if place < 0 or place >= len(whole):
            what = f"the text does not occur after character {start:,}" if find else "the start is past its end"
            raise ResultNotStored(f"'{id}' has {len(whole):,} characters; {what}")
        room = state.room()

        def read() -> str:
            limits = state.result_bound.limits({id: state.project(whole)}, room)
            heading_tokens = state.project(HEADING.format(id=id, start=place, end=len(whole), whole=len(whole)))
            return beginning(whole[place:], limits[id] - heading_tokens - SLACK_TOKENS, state.project)

        part = await in_thread(read)  # a result may have many megabytes
        return HEADING.format(id=id, start=place, end=place + len(part), whole=len(whole)) + part
