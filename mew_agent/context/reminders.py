"""[pure] Reminders: what an agent keeps for itself beside the conversation, whatever is cleared.

A reminder is the agent's own text, or belongs to an owner who renders it anew whenever it is shown, so that it never
holds an old figure. Owned here: the list, its names, how it reads. Not known here: policies, stores, models.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mew_agent.errors import MewAgentError

HEADING = "[Your reminders. They are notes you keep, not a message from anybody; clearing your mind leaves them.]"

Creator = Literal["agent", "context_health", "clear_mind"]


@dataclass(eq=False)
class UnknownReminder(MewAgentError):
    """There is no reminder of this name that the agent may change."""

    name: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return f"no reminder '{self.name}' (known: {', '.join(self.known) or 'none'})"


@dataclass(frozen=True, slots=True)
class ContinuationPackage:
    """Marks a reminder as a continuation package: what a new course begins with. `level` is the one it was made at."""

    created_by: Creator
    level: str | None = None


@dataclass(frozen=True, slots=True)
class Reminder:
    """One reminder. With an `owner` its `text` is empty: the owner renders it when it is shown."""

    id: str
    text: str
    at: str
    owner: str | None = None
    package: ContinuationPackage | None = None


Render = Callable[[str], str]
"""The present text of an owner's reminder."""


@dataclass
class Reminders:
    """All reminders of one agent, oldest first. Names are never used twice."""

    all: tuple[Reminder, ...] = ()
    made: int = 0

    def add(self, text: str, *, at: str, package: ContinuationPackage | None = None) -> Reminder:
        """Keep a text. Raises `ValueError` for an empty one."""
        return self._append(Reminder(self._next_id(), _said(text), at, package=package))

    def update(self, name: str, text: str, *, package: ContinuationPackage | None) -> Reminder:
        """Replace a reminder's text and mark. Raises `UnknownReminder`, or `ValueError` for an empty text."""
        old = self._own(name)
        new = replace(old, text=_said(text), package=package)
        self.all = tuple(new if one is old else one for one in self.all)
        return new

    def delete(self, name: str) -> None:
        """Forget a reminder. Raises `UnknownReminder`."""
        gone = self._own(name)
        self.all = tuple(one for one in self.all if one is not gone)

    def remind(self, owner: str, *, at: str) -> None:
        """Add the owner's reminder unless it is there."""
        if not any(one.owner == owner for one in self.all):
            self._append(Reminder(self._next_id(), "", at, owner=owner))

    def unremind(self, owner: str) -> None:
        """Drop the owner's reminder."""
        self.all = tuple(one for one in self.all if one.owner != owner)

    def shown(self, render: Render) -> str:
        """All reminders as the model reads them; empty if there are none."""
        if not self.all:
            return ""
        return "\n".join((HEADING, *(_line(one, render) for one in self.all)))

    def _append(self, reminder: Reminder) -> Reminder:
        self.all = (*self.all, reminder)
        self.made += 1
        return reminder

    def _next_id(self) -> str:
        return f"r{self.made + 1}"

    def _own(self, name: str) -> Reminder:
        for one in self.all:
            if one.id == name.strip() and one.owner is None:
                return one
        raise UnknownReminder(name, _names(self.all))


def _names(reminders: Sequence[Reminder]) -> tuple[str, ...]:
    return tuple(one.id for one in reminders if one.owner is None)


def _line(reminder: Reminder, render: Render) -> str:
    if reminder.owner is not None:
        return f"- {render(reminder.owner)}"
    mark = " (continuation package)" if reminder.package is not None else ""
    return f"- {reminder.id}{mark}: {reminder.text}"


def _said(text: str) -> str:
    stripped = text.strip()
    if not stripped:
        raise ValueError("a reminder needs a text")
    return stripped
