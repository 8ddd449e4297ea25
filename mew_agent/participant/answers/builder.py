"""[pure] Builds one answer, event by event, from an agent's stream.

Owns the answer events, their order, and the rule that no text appears twice. Streamed text is passed on at once. Text
before a tool call is thinking, not answer. The final chat determines the answer, and adds text that was not streamed.
Does not know envelopes or HTTP.

Only the end of a model call shows whether its text is the answer. If tools may be called, the first characters of a
call are therefore held back: enough to distinguish "Let me look." from an answer, and few enough for streaming.
"""

from dataclasses import dataclass
from typing import Final

from mew_agent.participant.peers import PeerContext

HOLD_CHARACTERS: Final = 400
AGENT_RESTARTED: Final = "the agent was restarted and continues with the question"


@dataclass(frozen=True, slots=True)
class Thinking:
    """A piece of the agent's thinking, or of its text before a tool call; not part of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Writing:
    """A piece of the answer. Together, the pieces are the answer, unless the agent discarded some."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """The agent's model called a tool; `arguments` is the JSON that it wrote."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ContextNotice:
    """A text for people about a change of the agent's context during the answer, such as a compaction."""

    text: str


@dataclass(frozen=True, slots=True)
class AgentRestarted(ContextNotice):
    """The agent's process was restarted while it worked on the question; it continues, and its text starts over."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The whole answer. `context` is the agent's last reported context before the answer.

    `failure` says why the agent could not answer, for example because its model is out of reach; `text` then tells
    people so. It is None for an answer.
    """

    text: str
    sender: str
    context: PeerContext
    failure: str | None = None


AnswerEvent = Thinking | Writing | ToolCalled | ContextNotice | Answered


class AnswerBuilder:
    """Builds one answer. Each method returns the events that are now ready, in order, but never `Answered`."""

    def __init__(self, *, hold_characters: int = HOLD_CHARACTERS, may_use_tools: bool = True) -> None:
        """`hold_characters` is the number of characters held back per call; 0 for none.

        It applies from the first call on with `may_use_tools`, else from the first tool call on.
        """
        self.text = ""
        """The answer, once it is finished."""
        self.notices: list[str] = []
        self._hold_characters = hold_characters
        self._holds = may_use_tools and hold_characters > 0
        self._held = ""
        self._shown: list[str] = []
        self.content_end = ""
        """The last two characters of the answer so far."""
        self._reasoning_end = ""
        self._is_cut = False
        self._misses_text = False
        self._tool_calls: set[str] = set()
        self._last_remark = ""

    def work_began(self, context: PeerContext) -> None:
        """Hook: the agent begins to work on the answer; `context` is its context before that."""

    def context_reported(self, context: PeerContext) -> None:
        """Hook: the agent reported its context."""

    def add_text(self, text: str) -> list[AnswerEvent]:
        """Add a piece of text from the current model call."""
        if not text or self._misses_text:
            return []
        if not self._holds:
            return self._show(text)
        self._held += text
        return self._release() if len(self._held) > self._hold_characters else []

    def add_whole_text(self, text: str) -> list[AnswerEvent]:
        """Add the whole text of a call, from an agent that could not stream it."""
        return [] if self._shown or self._held else self.add_text(text)

    def add_thinking(self, text: str) -> list[AnswerEvent]:
        """Add a piece of a reasoning model's thinking."""
        return self._reason(text) if text else []

    def expect_tools(self, *, is_likely: bool) -> None:
        """Set, before the first call, whether the agent's model has tools."""
        self._holds = is_likely and self._hold_characters > 0

    def add_tool_call(self, name: str, arguments: str, *, call_id: str = "", remark: str = "") -> list[AnswerEvent]:
        """Add a tool call. It ends the current model call, and shows that its text was no answer.

        `remark` is that text, or a description of it. A known `call_id` adds nothing.
        """
        if call_id and call_id in self._tool_calls:
            return []
        self._tool_calls.add(call_id)
        text = self._held or ("" if self._shown else remark)
        is_new = bool(text) and text != self._last_remark and text != f"I call {name}."
        self._last_remark = text or self._last_remark
        self._end_call()
        self._holds = self._hold_characters > 0
        return [*(self.reason_line(text.strip()) if is_new else ()), *self.show_tool_call(name, arguments)]

    def show_tool_call(self, name: str, arguments: str) -> list[AnswerEvent]:
        """Return the events that show a tool call."""
        return [ToolCalled(name, arguments)]

    def add_notice(self, text: str) -> list[AnswerEvent]:
        """Add a text about the agent's context."""
        self.notices.append(text)
        return [ContextNotice(text)]

    def restart_call(self, why: str) -> list[AnswerEvent]:
        """Discard the current model call before its repetition. `why` becomes a notice if text was shown."""
        held, was_shown = self._held.strip(), not all(map(str.isspace, self._shown))
        self._end_call()
        events = self.reason_line(held) if held else []
        return [*events, *self.add_notice(why)] if was_shown else events

    def restart_agent(self) -> list[AnswerEvent]:
        """Discard the current model call: the agent's process was restarted and continues with the question."""
        self._end_call()
        self.notices.append(AGENT_RESTARTED)
        return [AgentRestarted(AGENT_RESTARTED)]

    def skip_call(self, why: str) -> list[AnswerEvent]:
        """Stop showing the current call, because part of its text is missing, and show `why` as a notice.

        `finish` shows the rest if the call was the answer.
        """
        if self._misses_text:
            return []
        self._misses_text = True
        return self.add_notice(why)

    def finish(self, text: str) -> list[AnswerEvent]:
        """Finish with the final chat; adds the text not shown yet."""
        self.text = text
        events = self.close()
        shown = "".join(self._shown)
        streamed = shown + self._held
        if streamed and streamed.strip() == text.strip():
            events += self._release()
        elif shown and shown.strip() and shown.strip().endswith(text.strip()):
            pass  # the call was made twice, and the second text is the answer
        elif (start := _length_of_prefix(shown, text)) is not None:
            events += self._show(text[start:])
        else:
            self._end_call()
            events += self._show(text)
        self._held = ""
        return events

    def close(self) -> list[AnswerEvent]:
        """End without a final chat."""
        return []

    def _release(self) -> list[AnswerEvent]:
        held, self._held, self._holds = self._held, "", False
        return self._show(held)

    def _end_call(self) -> None:
        # Text of this call that was shown stays; the rest becomes a new paragraph.
        self._misses_text = False
        self._is_cut = self._is_cut or not all(map(str.isspace, self._shown))
        self._shown, self._held = [], ""

    def _show(self, text: str) -> list[AnswerEvent]:
        if not text:
            return []
        self._shown.append(text)
        events: list[AnswerEvent] = []
        if self._is_cut:
            events += self.write(break_after(self.content_end))
            self._is_cut = False
        return events + self.show(text)

    def show(self, text: str) -> list[AnswerEvent]:
        """Return the events that add a text of the agent to the answer."""
        return self.write(text)

    def write(self, text: str) -> list[AnswerEvent]:
        """Add a text to the answer."""
        if not text:
            return []
        self.content_end = (self.content_end + text)[-2:]
        return [Writing(text)]

    def reason_line(self, text: str) -> list[AnswerEvent]:
        """Add a line to the thinking."""
        start = "\n" if self._reasoning_end and self._reasoning_end != "\n" else ""
        return self._reason(f"{start}{text}\n")

    def _reason(self, text: str) -> list[AnswerEvent]:
        self._reasoning_end = text[-1]
        return [Thinking(text)]


def _length_of_prefix(shown: str, text: str) -> int | None:
    """Return how much of `text` was shown; None if other text was shown."""
    return next((len(start) for start in (shown, shown.lstrip(), shown.strip()) if text.startswith(start)), None)


def break_after(end: str) -> str:
    """Return the newlines needed to start a paragraph after text that ends with `end`."""
    if not end or end == "\n\n":
        return ""
    return "\n" if end.endswith("\n") else "\n\n"
