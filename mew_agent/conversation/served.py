"""[pure] Which window holds while another model answers than the one that was asked for.

Gateways to several providers fall back to another model where the first is busy or gone, and the limit changes with it.
Owned here: what windows are known of by name, and that the first window comes back with the first model. Servers that
answer with a longer name for the same model (`gpt-4o-2024-08-06`) are no fallback: only names that are known count.
"""

from collections.abc import Mapping

from mew_agent.context.tracker import Tracker
from mew_agent.model.interface import Window


class ServedWindows:
    """See the module. `lengths` are windows in tokens by the names of models."""

    def __init__(self, tracker: Tracker, lengths: Mapping[str, int]) -> None:
        self._tracker = tracker
        self._asked = tracker.model
        self._lengths = lengths
        self._own: Window | None = None

    def answered_by(self, served_model: str) -> None:
        """A reply came from this model: its window counts from now on."""
        tracker = self._tracker
        tokens = None if served_model == self._asked else self._lengths.get(served_model)
        if tokens is not None:
            if self._own is None:
                self._own = tracker.window
            window = Window(tokens, "configured", f"models.{served_model}")
        elif self._own is not None:
            window, self._own = self._own, None
        else:
            return
        if window != tracker.window:
            tracker.window_changed(window)
