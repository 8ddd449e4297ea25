"""[pure] The projected size of the context while a reply is still arriving."""

from mew_agent.tokens.projection import Calibration, features

STEPS = 100  # the running figure is shown each time it crosses another hundredth of the window

_OPEN_CHARS = 400


class StreamProjection:
    """The size of one running call. Adding a piece costs the same however much arrived before."""

    def __init__(self, prompt_tokens: int, limit_tokens: int | None, calibration: Calibration) -> None:
        self._prompt_tokens = prompt_tokens
        self._limit_tokens = limit_tokens
        self._calibration = calibration
        self._closed_features = 0.0
        self._open_text = ""
        self._shown_step = -1

    def add(self, text: str) -> int:
        """Add a piece of the reply. Returns the tokens the whole window holds now, prompt included."""
        self._open_text += text
        open_features = features(self._open_text)
        if len(self._open_text) > _OPEN_CHARS:
            # Features count whole words, so the text may be split only after a space.
            end = self._open_text.rfind(" ") + 1
            if end:
                self._closed_features += features(self._open_text[:end])
                self._open_text = self._open_text[end:]
                open_features = features(self._open_text)
        return self._prompt_tokens + round(self._calibration.tokens(self._closed_features + open_features))

    def crosses_step(self, tokens: int) -> bool:
        """Whether the figure reached another hundredth of the window, so that people should see it."""
        if self._limit_tokens is None:
            return False
        step = tokens * STEPS // self._limit_tokens
        if step == self._shown_step:
            return False
        self._shown_step = step
        return True
