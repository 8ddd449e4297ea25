"""`mew mcp filesystem` and `mew mcp cat-maze`: MCP servers over standard input and output.

The templates of the TypeScript CLI start both through a bridge and grant their tools by name, so the tools have the
names and arguments that those templates and their agents know. Owns what the file tools may reach. Needs the extra
`mcp`.
"""

import json
import runpy
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from mew_agent.errors import ConfigError, require_extra
from mew_agent.parts.mcp.serve_command import serve_over_stdio
from mew_agent.tools.catalog import LocalOffers
from mew_agent.tools.functions import Tool

if TYPE_CHECKING:
    from mew_agent.parts.mcp.server import OffersServer

MAX_FILE_BYTES: Final = 1_000_000
MAX_LISTED: Final = 1_000

_READING: Final = ("read_", "list_", "directory_", "search_", "get_", "view")
_REPLACING: Final = ("write_file", "edit_file", "move_file")

_MAZE: Final = Path(__file__).parents[2] / "templates" / "cat-maze" / "agents" / "maze.py"


def filesystem(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder that the tools may use.")],
) -> None:
    """Run an MCP server for the files of a folder.

    Its tools read, list, search, write, edit and move files. They reach nothing outside the folder, and no hidden
    file or folder, such as `.git` and `.mew` with its tokens.
    """
    if not folder.is_dir():
        raise ConfigError("FOLDER", f"no folder '{folder}'")
    _serve("filesystem", "The files of one folder. Paths may be relative to it.", FileTools(folder).tools())


def cat_maze() -> None:
    """Run an MCP server with a game: lead the cat to the fish."""
    _serve("cat-maze", "Lead the cat through the maze to the fish.", maze_tools())


def _serve(name: str, instructions: str, tools: list[Callable[..., str]]) -> None:
    require_extra("mcp", f"`mew mcp {name}`")
    serve_over_stdio(server_of(name, instructions, tools))


def server_of(name: str, instructions: str, tools: list[Callable[..., str]]) -> "OffersServer":
    """Create a server of functions that return text. Their errors become errors of the tool."""
    from mew_agent.parts.mcp.server import OffersServer  # needs the extra `mcp`

    offers = LocalOffers()
    for tool in tools:
        called = tool.__name__
        hints = {"readOnlyHint": called.startswith(_READING), "openWorldHint": False}
        if not hints["readOnlyHint"]:
            hints["destructiveHint"] = called in _REPLACING
        offers.toolbox.add(Tool.from_function(tool, annotations=hints))
    return OffersServer(name, instructions, offers)


class FileTools:
    """Tools for the files of one folder."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def tools(self) -> list[Callable[..., str]]:
        """Return the tools, each a function whose name is that of the tool."""
        return [
            self.list_allowed_directories, self.read_file, self.read_text_file, self.read_multiple_files,
            self.list_directory, self.list_directory_with_sizes, self.directory_tree, self.search_files,
            self.get_file_info, self.write_file, self.edit_file, self.create_directory, self.move_file,
        ]  # fmt: skip

    def list_allowed_directories(self) -> str:
        """Name the folder that these tools may use."""
        return str(self._root)

    def read_file(self, path: str, head: int | None = None, tail: int | None = None) -> str:
        """Read a text file, or only its first (`head`) or last (`tail`) lines."""
        lines = self._text(path).splitlines(keepends=True)
        if head is not None and tail is not None:
            raise ValueError("give head or tail, not both")
        return "".join(lines[:head] if head is not None else lines[-tail:] if tail else lines)

    def read_text_file(self, path: str, head: int | None = None, tail: int | None = None) -> str:
        """Read a text file, or only its first (`head`) or last (`tail`) lines."""
        return self.read_file(path, head, tail)

    def read_multiple_files(self, paths: list[str]) -> str:
        """Read several text files. A file that cannot be read does not stop the others."""
        parts = []
        for path in paths:
            try:
                parts.append(f"{path}:\n{self._text(path)}")
            except (OSError, ValueError) as error:
                parts.append(f"{path}: {error}")
        return "\n---\n".join(parts)

    def list_directory(self, path: str = ".") -> str:
        """List a folder. Names of folders end with a slash."""
        return _listing(f"{one.name}/" if one.is_dir() else one.name for one in self._entries(self._folder(path)))

    def list_directory_with_sizes(self, path: str = ".") -> str:
        """List a folder with the size of each file in bytes."""
        entries = self._entries(self._folder(path))
        return _listing(f"{one.name}/" if one.is_dir() else f"{one.name}  {one.stat().st_size}" for one in entries)

    def directory_tree(self, path: str = ".") -> str:
        """List a folder and everything in it, as JSON: name, type, and the children of folders."""
        left = [MAX_LISTED]

        def tree(folder: Path) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            for one in self._entries(folder):
                if left[0] <= 0:
                    break
                left[0] -= 1
                entry: dict[str, Any] = {"name": one.name, "type": "directory" if one.is_dir() else "file"}
                found.append({**entry, "children": tree(one)} if one.is_dir() else entry)
            return found

        return json.dumps(tree(self._folder(path)), indent=2, ensure_ascii=False)

    def search_files(self, pattern: str, path: str = ".") -> str:
        """Find files and folders by name or by a glob such as `*.py`, in a folder and its subfolders."""
        start, wanted = self._folder(path), pattern.lower()

        def matches(one: Path) -> bool:
            inner = one.relative_to(start).as_posix().lower()
            return wanted in one.name.lower() or fnmatch(one.name.lower(), wanted) or fnmatch(inner, wanted)

        return _listing(str(one) for one in self._below(start) if matches(one))

    def get_file_info(self, path: str) -> str:
        """Describe a file or folder: type, size in bytes and time of the last change."""
        target = self._inside(path)
        status = target.stat()
        changed = datetime.fromtimestamp(status.st_mtime, UTC).isoformat(timespec="seconds")
        return f"type: {'directory' if target.is_dir() else 'file'}\nsize: {status.st_size}\nmodified: {changed}"

    def write_file(self, path: str, content: str) -> str:
        """Write a text file. Replaces its content."""
        target = self._inside(path)
        target.write_text(content, encoding="utf-8")
        return f"wrote {path}"

    def edit_file(self, path: str, edits: list[dict[str, str]], dryRun: bool = False) -> str:  # noqa: N803 - the name on the wire
        """Replace texts in a file, one after another: each edit has `oldText`, which must occur once, and `newText`."""
        text = self._text(path)
        for edit in edits:
            old, new = edit.get("oldText", ""), edit.get("newText", "")
            if not old or text.count(old) != 1:
                raise ValueError(f"oldText must occur exactly once, this one occurs {text.count(old)} times: {old!r}")
            text = text.replace(old, new)
        if not dryRun:
            self._inside(path).write_text(text, encoding="utf-8")
        return text if dryRun else f"edited {path}"

    def create_directory(self, path: str) -> str:
        """Create a folder, and those above it."""
        self._inside(path).mkdir(parents=True, exist_ok=True)
        return f"created {path}"

    def move_file(self, source: str, destination: str) -> str:
        """Move or rename a file or folder. The destination must not exist."""
        start, end = self._inside(source), self._inside(destination)
        if start == self._root or end.exists():
            raise ValueError(f"{destination} exists" if end.exists() else f"{source} cannot be moved")
        start.rename(end)
        return f"moved {source} to {destination}"

    def _inside(self, path: str) -> Path:
        """The real path. Links are followed before the check, so no link leads outside."""
        target = (self._root / path).resolve()
        if not target.is_relative_to(self._root):
            raise ValueError(f"{path} is outside {self._root}")
        if any(part.startswith(".") for part in target.relative_to(self._root).parts):
            raise ValueError(f"{path} is hidden")
        return target

    def _folder(self, path: str) -> Path:
        target = self._inside(path)
        if not target.is_dir():
            raise ValueError(f"no folder {path}")
        return target

    def _text(self, path: str) -> str:
        target = self._inside(path)
        if not target.is_file():
            raise ValueError(f"no file {path}")
        if target.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"{path} is larger than {MAX_FILE_BYTES:,} bytes")
        try:
            return target.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not a text file") from None

    def _entries(self, folder: Path) -> list[Path]:
        """What is in a folder, without what is hidden, and without links, which may lead outside or in a circle."""
        return sorted(one for one in folder.iterdir() if not one.name.startswith(".") and not one.is_symlink())

    def _below(self, folder: Path) -> Iterator[Path]:
        for one in self._entries(folder):
            yield one
            if one.is_dir():
                yield from self._below(one)


def maze_tools() -> list[Callable[..., str]]:
    """Return the tools of the game of our template, which is a separate program, with one for each direction."""
    make_maze = runpy.run_path(str(_MAZE))["Maze"]
    maze = make_maze()

    def step(direction: str, description: str) -> Callable[[], str]:
        def move() -> str:
            # Where the cat has eaten, the next board begins first.
            return str(maze.next_board() if maze.is_solved() else maze.move(direction))

        move.__name__, move.__doc__ = direction, description
        return move

    def view() -> str:
        """Show the board, the cat and the possible moves."""
        return str(maze.look())

    def restart() -> str:
        """Start again with the first board."""
        nonlocal maze
        maze = make_maze()
        return view()

    ways = {"up": "up", "down": "down", "left": "to the left", "right": "to the right"}
    steps = [step(direction, f"Move the cat one step {way}.") for direction, way in ways.items()]
    return [view, *steps, restart]


def _listing(lines: Iterator[str]) -> str:
    found: list[str] = []
    for line in lines:
        if len(found) == MAX_LISTED:
            found.append(f"... and more than {MAX_LISTED:,} in all; list a subfolder")
            break
        found.append(line)
    return "\n".join(found) or "(nothing)"
