"""The pins of one agent: texts that every request contains verbatim, and the right to change them.

Owns their ids, their limits, and a model's tools for pins. Removing history never removes a pin. Does not know
envelopes; see `Control`.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from mew_board.visible import short
from mew_protocol.context_report import MAX_PIN_CHARS, MAX_PINS
from mew_protocol.payloads.participant import PinnedText
from mew_protocol.payloads.system import SpaceFacts
from mew_protocol.status_word import StatusWord, status_word

from mew_agent.context.history import Pin, pinned_text
from mew_agent.context.store import StoreUnusable
from mew_agent.context.tracker import Tracker
from mew_agent.errors import PinRefused
from mew_agent.participant.controls import PinKeeper
from mew_agent.tokens.projection import features
from mew_agent.tools.sources import FunctionTools

SETTINGS_ORIGIN: Final = "agent settings"
SPACE_ORIGIN: Final = "space settings"
_CONFIGURED: Final = {SETTINGS_ORIGIN: "the agent's settings", SPACE_ORIGIN: "space.yaml"}

SHOWN_CHARS: Final = 40


class ContextPins(PinKeeper):
    """The pins of one agent, shared by all its conversations."""

    def __init__(self, tracker: Tracker, save: Callable[[], Awaitable[object]]) -> None:
        self._tracker = tracker
        self._save = save
        self.all = tracker.history.pins
        """All pins, in the order of requests. The conversations of an agent share this list."""
        self.made = 0
        """How many pins participants and the agent itself have made; numbers are never reused."""

    @property
    def texts(self) -> tuple[PinnedText, ...]:
        reports = self._tracker.pin_reports()
        return tuple(
            PinnedText(**report.model_dump(), text=pin.text) for report, pin in zip(reports, self.all, strict=True)
        )

    @property
    def made_here(self) -> tuple[Pin, ...]:
        """The pins to store: those outside the configuration."""
        return tuple(pin for pin in self.all if pin.origin not in _CONFIGURED)

    def restore(self, pins: Iterable[Pin], made: int) -> None:
        """Restore stored pins."""
        self.all[:] = [*(pin for pin in self.all if pin.origin in _CONFIGURED), *pins]
        self.made = made

    def configure(self, origin: str, texts: Mapping[str, str]) -> None:
        """Replace the pins from a configuration (`SETTINGS_ORIGIN` or `SPACE_ORIGIN`) with these texts by id."""
        configured = [Pin(name, text, origin) for name, text in texts.items()]
        others = [pin for pin in self.all if pin.origin in _CONFIGURED and pin.origin != origin]
        self.all[:] = [*others, *configured, *self.made_here]

    async def add(self, text: str, origin: str) -> bool:
        """See `PinKeeper`. It is stored on return, and sent from the next request on."""
        if any(pin.text == text for pin in self.all):
            return False
        if not text.strip() or len(text) > MAX_PIN_CHARS:
            raise PinRefused(f"the text must have 1 to {MAX_PIN_CHARS:,} characters, not {len(text.strip()):,}")
        if len(self.all) >= MAX_PINS:
            raise PinRefused(f"{len(self.all)} texts are pinned, which is the limit; unpin one first")
        pin = Pin(f"p{self.made + 1}", text, origin)
        if (problem := self.problem(pin)) is not None:
            raise PinRefused(problem)
        self.made += 1
        self.all.append(pin)
        try:
            await self._save()
        except StoreUnusable:
            self.all.remove(pin)
            raise
        return True

    async def remove(self, name: str, made_by: str | None = None) -> None:
        """See `PinKeeper`. Refuses a pin whose origin is not `made_by`, if given."""
        pin = self._named(name)
        if made_by is not None and pin.origin != made_by:
            raise PinRefused(f"'{pin.id}' is from {pin.origin}, so only another participant can unpin it")
        if (place := _CONFIGURED.get(pin.origin)) is not None:
            raise PinRefused(f"'{pin.id}' is from {place}; remove it there")
        place_in_requests = self.all.index(pin)
        self.all.remove(pin)
        try:
            await self._save()
        except StoreUnusable:
            self.all.insert(place_in_requests, pin)
            raise

    def problem(self, added: Pin | None = None) -> str | None:
        """Return why the pins, with `added`, leave too little room in the window; None if they fit."""
        calibration, window_tokens = self._tracker.ledger.calibration, self._tracker.window.max_tokens
        pins = self.all if added is None else [*self.all, added]
        prefix_tokens = self._tracker.ledger.parts.prefix
        pinned_tokens = calibration.project(features(pinned_text(pins)), messages=0) if pins else 0
        # A compaction aims at half of the window, and cannot remove pins.
        if prefix_tokens + pinned_tokens <= window_tokens // 2:
            return None
        return (
            f"pins of about {pinned_tokens:,} tokens after a system prompt and tools of {prefix_tokens:,} (projected)"
            f" do not fit: together at most half of the window, {window_tokens // 2:,} of {window_tokens:,}"
        )

    def _named(self, name: str) -> Pin:
        for pin in self.all:
            if name in (pin.id, pin.text):
                return pin
        known = ", ".join(pin.id for pin in self.all) or "none"
        raise PinRefused(f"'{short(name, SHOWN_CHARS)}' is not pinned (pins: {known})")


def pins_of_space(facts: SpaceFacts, me: str) -> dict[str, str]:
    """Return the space's texts for agent `me`, by pin id: standing instructions, its own role, its teammates."""
    pins: dict[str, str] = {}
    if facts.instructions:
        pins["instructions"] = facts.instructions[:MAX_PIN_CHARS]
    if me in facts.descriptions:
        pins["role"] = f"Your part in this space: {facts.descriptions[me]}"
    lines = [f"{name}: {text}" for name, text in facts.descriptions.items() if name != me]
    if lines:
        pins["teammates"] = "\n".join(("Others in this space:", *lines))[:MAX_PIN_CHARS]
    return pins


class PinTools(FunctionTools):
    """A source of tools (see `ToolSource`) for pinning texts and removing the model's own pins."""

    def __init__(self, pins: ContextPins, me: str, announce: Callable[[StatusWord], Awaitable[None]]) -> None:
        self._pins, self._me, self._announce = pins, me, announce
        super().__init__(self.pin_text, self.unpin_text)

    # -- docstrings are what the model sees --------------------------------------------------------------

    async def pin_text(self, text: str) -> str:
        """Keep a short text word for word in every request, whatever leaves your context; use it for rules."""
        is_new = await self._pins.add(text, self._me)
        if is_new:
            await self._announce(status_word("pinned"))
        name = next(pin.id for pin in self._pins.all if pin.text == text)
        return f"Pinned as {name}." if is_new else f"It was pinned already, as {name}."

    async def unpin_text(self, pin: str) -> str:
        """Remove a text that you pinned yourself, by its id such as p1."""
        await self._pins.remove(pin, made_by=self._me)
        await self._announce(status_word("unpinned"))
        return "Unpinned."
