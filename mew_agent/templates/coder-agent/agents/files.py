"""Tools for the files of one folder.

`mew up` runs it as a participant. The only argument is the folder. The tools cannot reach files outside it, nor hidden
files and folders, such as `.git` and `.mew` with its tokens. The published MCP file server also serves those.
"""

import os
import sys
from pathlib import Path

from mew_agent import Participant, run

MAX_FILE_BYTES = 200_000
MAX_LISTED = 500
SKIPPED = {"node_modules", "__pycache__", "dist", "build"}


class Folder:
    """A folder and the tools for its files. Paths are relative to it, with forward slashes."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def list_files(self, folder: str = ".") -> str:
        """List the files in a folder and its subfolders, one path per line."""
        paths = self._files(self._inside(folder))
        listed = [path.relative_to(self.root).as_posix() for path in paths]
        more = [f"... and {len(listed) - MAX_LISTED} more; list a subfolder"] if len(listed) > MAX_LISTED else []
        return "\n".join([*listed[:MAX_LISTED], *more]) or "(no files)"

    def read_file(self, path: str) -> str:
        """Read a text file, with line numbers."""
        text = self._text(self._inside(path))
        return "\n".join(f"{number:>5} {line}" for number, line in enumerate(text.splitlines(), 1))

    def search_files(self, text: str, folder: str = ".") -> str:
        """Find the lines that contain a text, ignoring case. Prints path:line: content."""
        found: list[str] = []
        for path in self._files(self._inside(folder)):
            try:
                lines = self._text(path).splitlines()
            except ValueError:
                continue
            name = path.relative_to(self.root).as_posix()
            found += [
                f"{name}:{at}: {line.strip()}" for at, line in enumerate(lines, 1) if text.lower() in line.lower()
            ]
            if len(found) > MAX_LISTED:
                return "\n".join([*found[:MAX_LISTED], "... more matches; search a subfolder"])
        return "\n".join(found) or "(no matches)"

    def write_file(self, path: str, text: str) -> str:
        """Write a text file. Replaces its content."""
        target = self._inside(path)
        if target == self.root or target.is_dir():
            raise ValueError(f"{path} is a folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        count = len(text.splitlines())
        return f"wrote {target.relative_to(self.root).as_posix()}: {count:,} line{'' if count == 1 else 's'}"

    def _inside(self, path: str) -> Path:
        """Return the real path. Links are resolved before the check, so no link leads outside."""
        target = (self.root / path).resolve()
        if not target.is_relative_to(self.root):
            raise ValueError(f"{path} is outside the folder")
        if any(part.startswith(".") for part in target.relative_to(self.root).parts):
            raise ValueError(f"{path} is hidden")
        return target

    def _files(self, folder: Path) -> list[Path]:
        found = []
        for current, folders, names in os.walk(folder):
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED)
            found += [
                Path(current, name)
                for name in sorted(names)
                if not name.startswith(".") and Path(current, name).resolve().is_relative_to(self.root)
            ]
        return found

    def _text(self, path: Path) -> str:
        if not path.is_file():
            raise ValueError(f"no file {path.relative_to(self.root).as_posix()}")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"{path.name} is larger than {MAX_FILE_BYTES:,} bytes")
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{path.name} is not a text file") from None


async def main() -> None:
    """Offer the tools until the space ends."""
    folder = Folder(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
    me = Participant.from_environment()
    for tool in (folder.list_files, folder.read_file, folder.search_files, folder.write_file):
        me.tool(tool)
    await me.take_part()


if __name__ == "__main__":
    run(main)
