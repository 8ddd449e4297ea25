"""[pure] Reminders: notes of an agent that survive clears and compactions. Does not know policies or stores."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from mew_agent.errors import MewAgentError

HEADING = "[Your reminders. They are notes you keep, not a message; clearing your mind leaves them.]"


@dataclass(eq=False)
class UnknownReminder(MewAgentError):
    """No reminder has this id, or the agent may not change it."""

    name: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return f"no reminder '{self.name}' (known: {', '.join(self.known) or 'none'})"


@dataclass(frozen=True, slots=True)
class ContinuationPackage:
    """Marks a reminder for the work after a clear (a continuation package); `level` is the level at that time."""

    created_by: Literal["context_health", "clear_mind"]
    level: str | None = None


@dataclass(frozen=True, slots=True)
class Reminder:
    """One reminder. If it has an `owner`, its `text` is empty and the owner renders it."""

    id: str
    text: str
    at: str
    owner: str | None = None
    package: ContinuationPackage | None = None


Render = Callable[[str], str]  # returns the current text of an owner's reminder


@dataclass
class Reminders:
    """All reminders of one agent, oldest first. Ids are never reused."""

    all: tuple[Reminder, ...] = ()
    made: int = 0

    def add(self, text: str, *, at: str, package: ContinuationPackage | None = None) -> Reminder:
        """Add a reminder. Raises `ValueError` if the text is empty."""
        return self._append(_checked_text(text), at, package=package)

    def update(self, name: str, text: str, *, package: ContinuationPackage | None) -> None:
        """Replace a reminder's text and mark. Raises `UnknownReminder`, or `ValueError` if the text is empty."""
        old = self._own(name)
        new = replace(old, text=_checked_text(text), package=package)
        self.all = tuple(new if one is old else one for one in self.all)

    def delete(self, name: str) -> None:
        """Delete a reminder. Raises `UnknownReminder`."""
        gone = self._own(name)
        self.all = tuple(one for one in self.all if one is not gone)

    def remind(self, owner: str, *, at: str) -> None:
        """Add the owner's reminder if there is none."""
        if not any(one.owner == owner for one in self.all):
            self._append("", at, owner)

    def unremind(self, owner: str) -> None:
        """Remove the owner's reminder."""
        self.all = tuple(one for one in self.all if one.owner != owner)

    def shown(self, render: Render) -> str:
        """Return the text of all reminders, as it is sent."""
        return "\n".join((HEADING, *(_line(one, render) for one in self.all)))

    def _append(
        self, text: str, at: str, owner: str | None = None, package: ContinuationPackage | None = None
    ) -> Reminder:
        self.made += 1
        reminder = Reminder(f"r{self.made}", text, at, owner, package)
        self.all = (*self.all, reminder)
        return reminder

    def _own(self, name: str) -> Reminder:
        for one in self.all:
            if one.id == name.strip() and one.owner is None:
                return one
        raise UnknownReminder(name, tuple(one.id for one in self.all if one.owner is None))


def _line(reminder: Reminder, render: Render) -> str:
    if reminder.owner is not None:
        return f"- {render(reminder.owner)}"
    mark = " (continuation package)" if reminder.package is not None else ""
    return f"- {reminder.id}{mark}: {reminder.text}"


def _checked_text(text: str) -> str:
    stripped = text.strip()
    if not stripped:
        raise ValueError("a reminder needs a text")
    return stripped
