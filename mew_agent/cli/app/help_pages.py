"""How help reads: commands by what one wants to do, and options without the library's notes on types.

Owns the sections of `mew --help` and the words that stand for an option's value. What each command and option is for
stands beside it.
"""

import re
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

SECTIONS: Final = {
    "Launch": ("init", "up", "down", "demo"),
    "See": ("status",),
    "Act": ("chat", "compact", "forget", "clear", "pause", "resume"),
    "Take part, and let others in": ("space", "agent", "run", "token", "bridge", "mcp", "serve"),
    "Parts by themselves": ("gateway", "model", "client", "context"),
}

_VALUES: Final = {"str": "TEXT", "int": "N", "float": "N", "path": "PATH", "Path": "PATH", "file": "FILE"}
_TYPE: Final = re.compile(r" <([^>]*)>$")
_NOTES: Final = re.compile(r"  \[([^]]*)\]$")
_RANGE: Final = re.compile(r"(\S+<=?)?x[<>]=?\S+")


class Page(TyperCommand):
    """A command whose help says `PARTICIPANT TEXT...` and `--timeout N`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the line that shows how the command is typed."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the lists of arguments and options."""
        plainly: Any = _Plainly(formatter)
        super().format_options(ctx, plainly)


class Contents(TyperGroup):
    """`mew` itself: its commands in sections."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, section by section, in one column."""
        width = max(map(len, self.commands))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                rows = [(name.ljust(width), self.commands[name]) for name in names]
                formatter.write_dl([(name, one.get_short_help_str(formatter.width)) for name, one in rows])


def use_pages(app: typer.Typer) -> None:
    """Let every command below read like this."""
    for command in app.registered_commands:
        command.cls = Page
    for group in app.registered_groups:
        if group.typer_instance is not None:
            use_pages(group.typer_instance)


class _Plainly:
    """A formatter that makes rows plain and passes everything on."""

    def __init__(self, formatter: Any) -> None:
        self.section = formatter.section
        self._formatter = formatter

    def write_dl(self, rows: list[tuple[str, str]]) -> None:
        self._formatter.write_dl([(_plain_name(name), _plain_help(text)) for name, text in rows])


def _plain_name(name: str) -> str:
    """`--timeout <float range>` as `--timeout N`; an argument's name says enough."""
    kind = _TYPE.search(name)
    if kind is None:
        return name
    bare = name[: kind.start()]
    if not name.startswith("-"):
        return bare
    value = kind[1].removesuffix(" range").removeprefix("list[").removesuffix("]")
    return f"{bare} {_VALUES.get(value, value)}"


def _plain_help(text: str) -> str:
    """Without ranges, which an error tells when they matter, and without `.0`."""
    notes = _NOTES.search(text)
    if notes is None:
        return text
    kept = [re.sub(r"\.0$", "", note) for note in notes[1].split("; ") if not _RANGE.fullmatch(note)]
    return text[: notes.start()] + (f"  [{'; '.join(kept)}]" if kept else "")
