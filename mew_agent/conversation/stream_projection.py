"""[pure] How large the context is while a reply is still arriving, by projection.

Owns the running figure: the prompt as it was projected when it was sent, and what arrived since. No provider reports
anything in the middle of a reply, so it is never more than projected.
"""

from mew_agent.tokens.projection import Calibration, features

SHOWN_PARTS = 100
"""The running figure is shown each time another part of the window of this size is full."""

_SETTLED_CHARS = 400


class StreamWatch:
    """The size of one running call. Looking at a piece costs the same however much came before."""

    def __init__(self, prompt_tokens: int, limit_tokens: int | None, calibration: Calibration) -> None:
        self._base_tokens = prompt_tokens
        self._limit_tokens = limit_tokens
        self._calibration = calibration
        self._settled_features = 0.0
        self._open_text = ""
        self._shown_part = -1

    def arrived(self, text: str) -> int:
        """A piece came. Returns the tokens the whole window holds now, prompt included."""
        self._open_text += text
        open_features = features(self._open_text)
        if len(self._open_text) > _SETTLED_CHARS:
            # Words are counted whole: only behind a space can a text be taken apart.
            end = self._open_text.rfind(" ") + 1
            if end:
                self._settled_features += features(self._open_text[:end])
                self._open_text = self._open_text[end:]
                open_features = features(self._open_text)
        return self._base_tokens + round(self._calibration.tokens(self._settled_features + open_features))

    def is_worth_showing(self, tokens: int) -> bool:
        """Whether the figure moved so far that people should see it."""
        if self._limit_tokens is None:
            return False
        part = tokens * SHOWN_PARTS // self._limit_tokens
        if part == self._shown_part:
            return False
        self._shown_part = part
        return True
