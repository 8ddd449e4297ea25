"""[pure] The table of participant types: sections of a participant in space.yaml, and their programs.

Owns the interface of a type. Finds types by entry points of the group `mew_agent.participants`, named by their key in
space.yaml. Names no type.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from pydantic import BaseModel

from mew_settings.plugins import Finding, load_table
from mew_settings.roles import Role

GROUP: Final = "mew_agent.participants"

Place = tuple[str, ...]
"""The path of keys to a value in space.yaml."""


class DeclaredRights(Protocol):
    """The capabilities that a space.yaml declares."""

    def patterns_of(self, participant: str) -> tuple[dict[str, Any], ...]:
        """Return the capability patterns of a participant."""


_OF_COMMANDS: Final = ("command", "args")


@dataclass(frozen=True, slots=True)
class ProgramStart:
    """A program to start: its command line, and its settings, passed as JSON in the type's variable.

    `host` is the command of a process that can run several such programs, by the orders of
    `launch.shared_process_messages`.
    """

    command: tuple[str, ...]
    settings: Mapping[str, Any] | None = field(default=None, repr=False)
    host: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ParticipantStart:
    """A participant before its start.

    `settings` is its section, with the values of its `${VARIABLES}`. `joins` are the options of a `mew` command that
    joins as the participant. `prepared` are settings made for this run; `session` is the file that the participant
    keeps between starts.
    """

    name: str
    settings: dict[str, Any] = field(repr=False)
    folder: Path
    mew: tuple[str, ...]
    joins: tuple[str, ...]
    prepared: Mapping[str, Any] | None = field(default=None, repr=False)
    session: Path | None = None

    def program(self, program: str, arguments: list[str] | tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return a command line; `mew` is this project's own."""
        return (*(self.mew if program == "mew" else (program,)), *arguments)


@dataclass(frozen=True, slots=True)
class StartCheck:
    """A participant to check before its start. `search` is the PATH of its program; `path` is the space.yaml."""

    name: str
    start: ProgramStart = field(repr=False)
    folder: Path
    search: str | None
    path: Path


@dataclass(frozen=True, slots=True)
class AddedBy:
    """The value that adds a participant of a type: an option of `mew agent add`, and a field on the dashboard.

    Participants with the capability `program/add` may send any value without `$` and without a password in a URL.
    """

    option: str
    """The option, such as `--mcp`."""
    value: str
    """The name of the value, such as `URL`."""
    title: str
    """The type in the form of the dashboard."""
    help: str
    choices: tuple[str, ...] = ()
    """All possible values (default: any text)."""


class ParticipantType(ABC):
    """A type of participant. Others extend it; `settings` and `start` are enough.

    The methods get the participant's section, which is an instance of `settings`.
    """

    settings: ClassVar[type[BaseModel]]
    """The model of its section in space.yaml."""
    more_keys: ClassVar[Mapping[str, tuple[Any, Any]]] = {}
    """Further keys of the participant: annotation and default of each."""
    label: ClassVar[str | None] = None
    """The value of `type:` that files of the TypeScript tools give such a participant."""
    role: ClassVar[Role] = "agent"
    """The role of its participants, unless space.yaml gives one."""
    answers_chats: ClassVar[bool] = True
    extra: ClassVar[tuple[str, str] | tuple[str, str, str] | None] = None
    """The extra of mew-agent that it needs, its name in errors, and the package if it has another name."""
    variable: ClassVar[str | None] = None
    """The environment variable with the settings of its program as JSON. `ps` shows arguments, and not these."""
    with_variables: ClassVar[tuple[str, ...]] = ()
    """The keys of its section in which `${NAME}` stands for a variable; `env` also gets the participant's."""
    words: ClassVar[tuple[str, ...]] = ()
    """The arguments of `command: mew` that mean the same type."""
    added_by: ClassVar[AddedBy | None] = None
    """The one value of a new participant, if that is enough."""

    @abstractmethod
    def start(self, start: ParticipantStart) -> ProgramStart:
        """Return the program to start."""

    def section_from(self, text: str) -> Any:
        """Return the section for a value of `added_by`. Raises errors of `mew_agent`."""
        return text

    def inherits(self, section: Any) -> tuple[str, ...]:
        """Return the environment variables that its program gets; `section` is None for `words`."""
        return ()

    def mentions(self, section: Any) -> Iterator[tuple[Place, str]]:
        """Yield the participants that the section names, each with its place in the section."""
        return iter(())

    def useless_keys(self, section: Any) -> Iterator[tuple[Place, str]]:
        """Yield keys of the section without effect, each with the reason."""
        return iter(())

    def warnings(self, name: str, section: Any, space: DeclaredRights) -> Iterator[tuple[Place, str]]:
        """Yield warnings about the section, each with its place in the section."""
        return iter(())

    def check(self, check: StartCheck) -> None:
        """Raise an error of `mew_agent` if the participant cannot start."""

    def needs(self, section: Any) -> Iterator[str]:
        """Yield the programs that a participant needs, and extras as `[name]`."""
        if self.extra is not None:
            yield f"[{self.extra[0]}]"

    def programs(self) -> Mapping[str, tuple[str, str]]:
        """Return the programs for `mew doctor`: by program, its name and its install command."""
        return {}

    def findings(self, name: str, section: Any) -> Iterator[Finding]:
        """Yield further `mew doctor` lines about a participant."""
        return iter(())

    def checked_variables(self) -> tuple[str, ...]:
        """Return the keys in which an unset `${NAME}` causes a warning: all except those that a shell may read
        later.
        """
        return tuple(key for key in self.with_variables if key not in _OF_COMMANDS)


@cache
def participant_types() -> Mapping[str, ParticipantType]:
    """Return the participant types by their key in space.yaml."""
    return load_table(GROUP)
