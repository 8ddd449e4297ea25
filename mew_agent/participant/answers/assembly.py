"""[pure] From what an agent shows while it thinks to the pieces of one answer.

Owns the order and the rule that no text comes twice: what the model streams is shown as it comes; text that it
wrote before calling a tool is thinking, not answer; the final chat decides what the answer is, and adds whatever
of it was not shown yet. Knows no envelopes and no HTTP.

Whether text is the answer is known only when its model call ends. So the first characters of a call are held
back where tools may be called: long enough for "Let me look." to be told from an answer, short enough that an
answer still comes piece by piece.
"""

from dataclasses import dataclass
from typing import Final, Literal

Part = Literal["content", "reasoning_content"]
NoticePlace = Literal["content", "reasoning", "off"]

HOLD_CHARACTERS: Final = 400
_LONGEST_ARGUMENTS: Final = 200


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of the answer, or of the thinking before it."""

    part: Part
    text: str


class Answer:
    """One answer being put together. Every method returns the deltas that it makes ready, in order.

    `hold_characters` is how much text of a call is held back; 0 shows everything at once. It holds from the first
    call on where `may_use_tools`, else from the first tool call on.
    """

    def __init__(
        self, *, notices: NoticePlace = "content", hold_characters: int = HOLD_CHARACTERS, may_use_tools: bool = True
    ) -> None:
        self.text = ""
        """The answer, once it is finished."""
        self.notices: list[str] = []
        self._place = notices
        self._hold_characters = hold_characters
        self._holds = may_use_tools and hold_characters > 0
        self._held = ""
        self._shown = ""
        self._content_end = ""
        self._reasoning_end = ""
        self._is_cut = False
        self._waiting: list[str] = []
        self._tool_calls: set[str] = set()
        self._last_remark = ""

    def token(self, text: str) -> list[Delta]:
        """A piece of text of the running model call."""
        if not text:
            return []
        if not self._holds:
            return self._show(text)
        self._held += text
        return self._release() if len(self._held) > self._hold_characters else []

    def expect_tools(self, *, is_likely: bool) -> None:
        """The agent said, before its first call, whether its model has tools."""
        self._holds = is_likely and self._hold_characters > 0

    def whole(self, text: str) -> list[Delta]:
        """The text of a call at once, by an agent that could not stream it."""
        return [] if self._shown + self._held else self.token(text)

    def thinking(self, text: str) -> list[Delta]:
        """A piece of what a reasoning model thinks."""
        return self._reason(text) if text else []

    def tool_call(self, name: str, arguments: str, *, call_id: str = "", remark: str = "") -> list[Delta]:
        """The running call ended in a tool call: its text was no answer. `remark` is that text, or words for it."""
        if call_id and call_id in self._tool_calls:
            return []
        self._tool_calls.add(call_id)
        said = self._held or ("" if self._shown else remark)
        is_news = bool(said) and said != self._last_remark and said != f"I call {name}."
        self._last_remark = said or self._last_remark
        self._end_call()
        self._holds = self._hold_characters > 0
        lines = [*([said.strip()] if is_news else []), _call_line(name, arguments)]
        return [delta for line in lines for delta in self._reason_line(line)]

    def notice(self, text: str) -> list[Delta]:
        """Something about the agent itself. It stands in a paragraph of its own, and splits no word."""
        self.notices.append(text)
        if self._place == "off":
            return []
        if self._place == "reasoning":
            return self._reason_line(f"> {text}")
        self._waiting.append(text)
        return [] if self._is_in_a_word else self._tell()

    def begin_again(self, why: str) -> list[Delta]:
        """The running call was cut and is made again: what it wrote so far is no answer. `why` is said if it showed."""
        held, was_shown = self._held.strip(), bool(self._shown.strip())
        self._end_call()
        lines = self._reason_line(held) if held else []
        return [*lines, *self.notice(why)] if was_shown else lines

    def finish(self, text: str) -> list[Delta]:
        """The final chat: what of it was not shown yet."""
        self.text = text
        deltas = self._tell()
        shown = self._shown
        if _same(shown + self._held, text):
            deltas += self._release()
        elif shown and shown.strip() and shown.strip().endswith(text.strip()):
            pass  # the call was made twice, and the second time is the answer
        elif (start := _prefix(shown, text)) is not None:
            deltas += self._show(text[start:])
        else:
            self._end_call()
            deltas += self._show(text)
        self._held = ""
        return deltas

    def close(self) -> list[Delta]:
        """No final chat comes: notices that wait for the end of a word are told."""
        return self._tell()

    # -- inside ------------------------------------------------------------------------------------------

    @property
    def _is_in_a_word(self) -> bool:
        return bool(self._content_end) and not self._content_end[-1].isspace()

    def _release(self) -> list[Delta]:
        held, self._held, self._holds = self._held, "", False
        return self._show(held)

    def _end_call(self) -> None:
        """What was shown of this call stays; what follows stands apart from it."""
        self._is_cut = self._is_cut or bool(self._shown.strip())
        self._shown = self._held = ""

    def _show(self, text: str) -> list[Delta]:
        if not text:
            return []
        self._shown += text
        deltas: list[Delta] = []
        if self._is_cut:
            deltas += self._content(_gap(self._content_end))
            self._is_cut = False
        if self._waiting:
            at = next((place for place, one in enumerate(text) if one.isspace()), None)
            if self._is_in_a_word and at is None:
                return deltas + self._content(text)
            if self._is_in_a_word and at is not None:
                deltas += self._content(text[:at])
                text = text[at:].lstrip(" ")
            deltas += self._tell()
        return deltas + self._content(text)

    def _tell(self) -> list[Delta]:
        waiting, self._waiting = self._waiting, []
        return [delta for text in waiting for delta in self._content(f"{_gap(self._content_end)}> {text}\n\n")]

    def _content(self, text: str) -> list[Delta]:
        if not text:
            return []
        self._content_end = (self._content_end + text)[-2:]
        return [Delta("content", text)]

    def _reason_line(self, text: str) -> list[Delta]:
        start = "\n" if self._reasoning_end and self._reasoning_end != "\n" else ""
        return self._reason(f"{start}{text}\n")

    def _reason(self, text: str) -> list[Delta]:
        self._reasoning_end = text[-1]
        return [Delta("reasoning_content", text)]


def _same(shown: str, text: str) -> bool:
    return shown.strip() == text.strip() and bool(shown)


def _prefix(shown: str, text: str) -> int | None:
    """Where the rest of a text begins, of which this was shown; None when something else was."""
    for start in (shown, shown.lstrip(), shown.strip()):
        if text.startswith(start):
            return len(start)
    return None


def _gap(end: str) -> str:
    """What separates a paragraph from text that ends so."""
    if not end or end == "\n\n":
        return ""
    return "\n" if end.endswith("\n") else "\n\n"


def _call_line(name: str, arguments: str) -> str:
    shown = arguments if len(arguments) <= _LONGEST_ARGUMENTS else f"{arguments[:_LONGEST_ARGUMENTS]}..."
    return f"→ {name} {shown}".rstrip()
