"""[pure] An answer as text alone, for clients without a place for tool calls and notices.

Tool calls become lines of the thinking. A notice in the answer is a separate paragraph, and splits no word.
"""

from typing import Final, Literal

from mew_board.quoting import markdown_line
from mew_board.visible import short

from mew_agent.participant.answers.builder import (
    AGENT_RESTARTED,
    HOLD_CHARACTERS,
    AnswerBuilder,
    AnswerEvent,
    break_after,
)
from mew_agent.participant.peers import PeerContext
from mew_agent.parts.shared.reported_usage import CallUsage

NoticePlacement = Literal["content", "reasoning", "off"]

_LONGEST_ARGUMENTS: Final = 200


class TextAnswer(AnswerBuilder):
    """Builds one answer; `notices` says where notices go. `usage` is that of the answer's model calls."""

    def __init__(
        self,
        *,
        notices: NoticePlacement = "content",
        hold_characters: int = HOLD_CHARACTERS,
        may_use_tools: bool = True,
    ) -> None:
        super().__init__(hold_characters=hold_characters, may_use_tools=may_use_tools)
        self.usage = CallUsage(PeerContext())
        self._placement = notices
        self._waiting_notices: list[str] = []

    def work_began(self, context: PeerContext) -> None:
        self.usage.begin(context)

    def context_reported(self, context: PeerContext) -> None:
        self.usage.update(context)

    def show_tool_call(self, name: str, arguments: str) -> list[AnswerEvent]:
        return self.reason_line(f"→ {markdown_line(f'{name} {short(arguments, _LONGEST_ARGUMENTS)}')}")

    def add_notice(self, text: str) -> list[AnswerEvent]:
        self.notices.append(text)
        match self._placement:
            case "off":
                return []
            case "reasoning":
                return self.reason_line(f"> {markdown_line(text)}")
            case "content":
                self._waiting_notices.append(text)
                return [] if self._is_in_a_word else self.close()

    def restart_agent(self) -> list[AnswerEvent]:
        super().restart_agent()
        self.notices.pop()
        return self.add_notice(AGENT_RESTARTED)

    @property
    def _is_in_a_word(self) -> bool:
        return bool(self.content_end) and not self.content_end[-1].isspace()

    def show(self, text: str) -> list[AnswerEvent]:
        events: list[AnswerEvent] = []
        if self._waiting_notices:
            at = next((place for place, one in enumerate(text) if one.isspace()), None)
            if self._is_in_a_word and at is None:
                return self.write(text)
            if self._is_in_a_word and at is not None:
                events += self.write(text[:at])
                text = text[at:].lstrip(" ")
            events += self.close()
        return events + self.write(text)

    def close(self) -> list[AnswerEvent]:
        """Add the notices that wait for the end of a word."""
        waiting, self._waiting_notices = self._waiting_notices, []
        return [
            one for text in waiting for one in self.write(f"{break_after(self.content_end)}> {markdown_line(text)}\n\n")
        ]
