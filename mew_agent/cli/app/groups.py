"""Groups that import a command when it is used, and the layout of help pages.

Finds, loads and describes the commands. Which commands there are is `commands`; their options and help text are in the
modules that implement them.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, TypeVar

import typer
from mew_settings.environment import COMPAT_VARIABLE
from typer.core import TyperCommand, TyperGroup

from mew_agent.cli.app.options import SHORT_OPTIONS, common_options, typer_command
from mew_agent.cli.app.signals import raise_on_interrupt

_SIMILARITY: Final = 0.7
"""How similar a command must be to be suggested; at `difflib`'s own 0.6, `logs` is similar to `bogus`."""


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command: its summary, and its `module:function`. With `passes_options`, all further arguments go to another
    program.

    Without `is_everyday`, only `mew help all` lists it. With `detaches`, a `-d` without a value is `--detach`, as in
    Docker; with one it is the folder, as in the TypeScript CLI. Without `has_outcome`, the command only runs a program
    and has no `--json`.
    """

    summary: str
    implementation: str
    passes_options: bool = False
    is_everyday: bool = True
    detaches: bool = False
    has_outcome: bool = True

    def load(self, name: str) -> Any:
        """Import the implementation and make a click command of it."""
        module, _, function = self.implementation.partition(":")
        # An app with a single function is a command, not a group.
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        settings = {"ignore_unknown_options": True, "allow_interspersed_args": False} if self.passes_options else {}
        called = typer_command(getattr(import_module(module), function), has_json=self.has_outcome)
        app.command(name, cls=CommandPage, context_settings=settings)(called)
        command = typer.main.get_command(app)
        assert isinstance(command, CommandPage)
        command.detaches = self.detaches
        return command


def rare_command(summary: str, implementation: str, **settings: bool) -> CommandEntry:
    """Return a command that only `mew help all` lists."""
    return CommandEntry(summary, implementation, is_everyday=False, **settings)


def program_command(summary: str, implementation: str) -> CommandEntry:
    """Return a command that only runs a program."""
    return CommandEntry(summary, implementation, has_outcome=False)


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """A group of commands in a list. The names of its commands begin with its own."""

    summary: str
    is_everyday: bool = True


@dataclass(frozen=True, slots=True)
class OtherName:
    """Another name of a command, such as that of the TypeScript CLI.

    `target` is the command to run; with arguments, `with_argument` if given. `options` maps the other name's options to
    ours; an option mapped to an empty name becomes an argument.
    """

    target: str
    with_argument: str | None = None
    options: Mapping[str, str] | None = None

    def translated(self, arguments: Sequence[str]) -> list[str]:
        """Translate arguments of the other name into those of the command."""
        return [word for one in arguments for word in self._words(one)]

    def _words(self, typed: str) -> list[str]:
        name, is_joined, value = typed.partition("=")
        if self.options is None or name not in self.options:
            return [typed]
        return [*filter(None, [self.options[name]]), *([value] if is_joined else [])]


@dataclass(frozen=True, slots=True)
class RunnableAgent:
    """A participant for `mew agent run --type NAME`: the `module:function`, called with an `AgentProgram`."""

    implementation: str

    def run(self, program: "AgentProgram") -> None:
        """Run the participant until it is shut down."""
        module, _, function = self.implementation.partition(":")
        getattr(import_module(module), function)(program)


@dataclass(frozen=True, slots=True)
class AgentProgram:
    """Values from the command line for a participant of a `RunnableAgent`. None means: look elsewhere."""

    type: str
    gateway: str | None
    space: str | None
    id: str | None
    token: str | None
    config: Path | None
    log_level: str


Entry = CommandEntry | GroupEntry | OtherName | RunnableAgent
E = TypeVar("E", bound=Entry)
Sections = Mapping[str, Mapping[str, Entry]]
"""Commands by name, under the headings that help shows. The name of a command in a group has two words."""


def entries_of(sections: Sections, kind: type[E]) -> dict[str, E]:
    """Return the entries of one kind by name."""
    entries = (pair for section in sections.values() for pair in section.items())
    return {name: entry for name, entry in entries if isinstance(entry, kind)}


def make_group(
    name: str, sections: Sections, callback: Callable[..., None], *, add_completion: bool = False, **settings: Any
) -> Any:
    """Make a group of commands that are loaded when used. `callback` also runs when no command is given."""
    app = typer.Typer(
        name=name,
        cls=LazyGroup,
        callback=callback,
        add_completion=add_completion,
        invoke_without_command=True,
        rich_markup_mode=None,
        suggest_commands=False,  # typer would only search loaded commands; see `resolve_command`
        context_settings={"help_option_names": ["-h", "--help"]},
        **settings,
    )
    group = typer.main.get_command(app)
    assert isinstance(group, LazyGroup)
    group.sections = sections
    return group


def show_help_if_alone(context: typer.Context) -> None:
    """Print the help of a group that was called without a command."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


class _Page:
    """The layout of a help page; mixed into typer's classes."""

    params: list[Any]
    get_params: Callable[[Any], list[Any]]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments. Errors refer to the help of this command."""
        try:
            return super().parse_args(ctx, args)  # type: ignore[misc,no-any-return]
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:
                error.ctx = ctx  # type: ignore[attr-defined]
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line after the command's name."""
        shown = [one for one in self.params if one.param_type_name == "argument" and not one.hidden]
        return ["[OPTIONS]", *(_argument_name(one) for one in shown)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the lists of arguments and options."""
        for title, rows in parameter_rows(self.get_params(ctx)).items():
            with formatter.section(title):
                formatter.write_dl(rows)


class CommandPage(_Page, TyperCommand):
    """A command, and its help page."""

    detaches: bool = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments."""
        if self.detaches:
            pairs = zip(args, [*args[1:], "-"], strict=True) if args else ()
            args = ["--detach" if one == "-d" and after.startswith("-") else one for one, after in pairs]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Load and run the command. Ctrl-C lets it clean up."""
        raise_on_interrupt()
        return super().invoke(ctx)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Name the options that `mew help options` explains."""
        if common := common_options(self.params):
            formatter.write_paragraph()
            formatter.write_text(f"Also {', '.join(common)}: see `mew help options`.")


class LazyGroup(_Page, TyperGroup):
    """A group that imports a command when it is used."""

    sections: Sections
    tables: Mapping[str, list[tuple[str, str]]] = {}
    """Further tables below the commands, by title."""

    @property
    def entries(self) -> dict[str, CommandEntry | GroupEntry]:
        """All commands by name, in the order of the help page."""
        return {name: entry for section in self.listed(everything=True).values() for name, entry in section.items()}

    @property
    def paths(self) -> dict[str, CommandEntry]:
        """All commands as typed, with those of groups."""
        return entries_of(self.sections, CommandEntry)

    @property
    def other_names(self) -> dict[str, OtherName]:
        """Other names of commands, as typed."""
        return entries_of(self.sections, OtherName)

    def listed(self, *, everything: bool = False) -> dict[str, dict[str, CommandEntry | GroupEntry]]:
        """Return the commands that help lists, section by section: the everyday ones, or all."""
        listed = {
            title: {
                name: one
                for name, one in section.items()
                if isinstance(one, CommandEntry | GroupEntry) and " " not in name and (everything or one.is_everyday)
            }
            for title, section in self.sections.items()
        }
        return {title: section for title, section in listed.items() if section}

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return list(self.entries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of this name, loaded if need be; None if there is none."""
        entry = self.entries.get(cmd_name) if cmd_name not in self.commands else None
        if isinstance(entry, CommandEntry):
            self.commands[cmd_name] = entry.load(cmd_name)
        elif isinstance(entry, GroupEntry):
            self.commands[cmd_name] = self._make_group(cmd_name, entry.summary)
        return self.commands.get(cmd_name)

    def _make_group(self, name: str, summary: str) -> Any:
        """Make a group; its commands stay unloaded."""
        start = f"{name} "
        inner = {path.removeprefix(start): one for path, one in self.paths.items() if path.startswith(start)}
        return make_group(name, {"Commands": inner}, show_help_if_alone, help=summary)

    def command_at(self, path: str) -> Any:
        """Return the command at this typed path."""
        command: Any = self
        for name in path.split():
            command = command.get_command(None, name)
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the typed command by its name or another one, or suggest a name."""
        other = next((one for one in (" ".join(args[:2]), args[0]) if one in self.other_names), None)
        if other is not None:
            return self._renamed(ctx, other, args[other.count(" ") + 1 :])
        if args[0] not in self.entries and not args[0].startswith("-"):
            ctx.fail(f"No such command '{args[0]}'{self._suggestion(args[0], ctx.find_root().command)}")
        return super().resolve_command(ctx, args)

    def _renamed(self, ctx: Any, typed: str, rest: list[str]) -> tuple[str, Any, list[str]]:
        """Return the command that another name stands for, and print its own name."""
        meant = self.other_names[typed]
        has_argument = any(not one.startswith("-") for one in rest)
        words = ((meant.with_argument if has_argument else None) or meant.target).split()
        _say_name(f"mew {typed}", f"mew {' '.join(words)}")
        names = [*takewhile(lambda one: not one.startswith("-"), words)]
        path = " ".join(names)
        return path, self.command_at(path), [*words[len(names) :], *meant.translated(rest)]

    def _suggestion(self, name: str, root: "LazyGroup") -> str:
        """Return the commands that were probably meant: with the same name elsewhere, else the most similar one."""
        from difflib import get_close_matches  # only needed for an error

        paths = [name] if name in root.entries else [path for path in root.paths if path.endswith(f" {name}")]
        meant = [f"'mew {path}'" for path in paths]
        former = (one.target for typed, one in self.other_names.items() if typed.startswith(f"{name} "))
        meant = meant or [f"'mew {path}'" for path in dict.fromkeys(former)]
        meant = meant or [f"'{one}'" for one in get_close_matches(name, self.entries, n=1, cutoff=_SIMILARITY)]
        meant = meant or [f"'mew {one}'" for one in get_close_matches(name, root.entries, n=1, cutoff=_SIMILARITY)]
        return f" (did you mean {' or '.join(meant)}?)" if meant else ""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line after the group's name."""
        return [*super().collect_usage_pieces(ctx)[:1], "COMMAND [ARGS]..."]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, then the commands section by section, their summaries in one column."""
        super().format_options(ctx, formatter)
        write_tables(formatter, {title: _summaries(section) for title, section in self.listed().items()})
        write_tables(formatter, self.tables)


def _say_name(typed: str, command: str) -> None:
    """Print the name of a command typed by another name. Prints nothing in scripts of the TypeScript CLI."""
    from mew_agent.cli.app import terminal

    if COMPAT_VARIABLE not in os.environ:
        terminal.warn(f"`{typed}` is `{command}` here")


def _summaries(section: Mapping[str, CommandEntry | GroupEntry]) -> list[tuple[str, str]]:
    return [(name, entry.summary) for name, entry in section.items()]


def write_tables(formatter: Any, tables: Mapping[str, list[tuple[str, str]]]) -> None:
    """Write tables of two columns below their titles, the second column in one place."""
    width = max((len(name) for rows in tables.values() for name, _ in rows), default=0)
    for title, rows in tables.items():
        with formatter.section(title):
            formatter.write_dl([(name.ljust(width), text) for name, text in rows])


def parameter_rows(parameters: list[Any]) -> dict[str, list[tuple[str, str]]]:
    """Return arguments and options as rows of a help page: usage, and help with the default.

    Leaves out common options; see `common_options`.
    """
    common = frozenset(common_options(parameters))
    shown = [one for one in parameters if not getattr(one, "hidden", False) and common.isdisjoint(one.opts)]
    rows = {
        "Arguments": [(one.metavar or one.name, one.help) for one in shown if one.param_type_name == "argument"],
        "Options": [(_option_name(one), _option_help(one)) for one in shown if one.param_type_name == "option"],
    }
    return {title: found for title, found in rows.items() if found}


def _argument_name(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return f"{name if argument.required else f'[{name}]'}{'' if argument.nargs == 1 else '...'}"


def _option_name(option: Any) -> str:
    long = next(name for name in option.opts if name.startswith("--"))
    short = [name for name in option.opts if SHORT_OPTIONS.get(name) == long]
    names = " / ".join([", ".join([*short, long]), *option.secondary_opts])
    return names if option.is_flag else f"{names} {option.metavar}"


def _option_help(option: Any) -> str:
    text, value = str(option.help or ""), option.default
    if option.required:
        note = "required"
    elif option.secondary_opts:
        note = f"default: {(option.opts if value else option.secondary_opts)[0].lstrip('-')}"
    elif value is None or value is False:
        return text
    else:
        note = f"default: {value:g}" if isinstance(value, float) else f"default: {value}"
    return f"{text.removesuffix('.')} ({note})."
