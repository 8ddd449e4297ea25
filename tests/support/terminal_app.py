"""The terminal application as a person sees it: keys in, text out."""

import pytest
from textual.pilot import Pilot

from mew_agent.parts.terminal.app import SpaceApp
from mew_agent.parts.terminal.widgets import Composer
from tests.support.waiting import until


def screen_text(app: SpaceApp) -> str:
    """What the screen shows, line by line."""
    # `export_screenshot` draws a picture, which takes much longer.
    lines = (strip.text.replace("\xa0", " ").rstrip() for strip in app.screen._compositor.render_strips())
    return "\n".join(lines).rstrip("\n")


class Screen:
    """The application and the hands of a person."""

    def __init__(self, pilot: Pilot[None]) -> None:
        assert isinstance(pilot.app, SpaceApp)
        self.app, self.pilot = pilot.app, pilot

    async def text(self) -> str:
        """What the screen shows once everything that waits is handled."""
        await self.pilot.pause()
        return screen_text(self.app)

    async def type(self, line: str) -> None:
        await self.pilot.press("escape")
        self.app.query_one(Composer).value = line
        await self.pilot.press("enter")

    async def shows(self, *texts: str) -> str:
        """Wait until the screen shows all these texts, and return what it shows."""
        shown = ""

        async def found() -> bool:
            nonlocal shown
            shown = await self.text()
            return all(text in shown for text in texts)

        try:
            await until(found, every_seconds=0.2)
        except TimeoutError:
            pytest.fail(f"not shown: {texts}\n{shown}")
        return shown

    async def becomes(self, expected: str) -> None:
        """Wait until the screen shows exactly this text."""

        async def is_so() -> bool:
            return await self.text() == expected.rstrip("\n")

        try:
            await until(is_so, every_seconds=0.05)
        except TimeoutError:
            assert screen_text(self.app) == expected.rstrip("\n")

    async def rests(self) -> str:
        """Wait until the screen no longer changes, and return what it shows."""
        shown: list[str] = []

        async def is_same() -> bool:
            shown.append(await self.text())
            return len(shown) > 5 and len(set(shown[-5:])) == 1

        await until(is_same, every_seconds=0.2)
        return shown[-1] + "\n"
