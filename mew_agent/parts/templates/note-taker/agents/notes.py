"""Tools for notes: Markdown files in one folder, named after their titles.

`mew up` runs it as a participant. The only argument is the folder, which is created with the first note.
"""

import re
import sys
from pathlib import Path

from mew_agent import Participant, run

MAX_NAME_LENGTH = 80


class Notes:
    """The notes of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save_note(self, title: str, text: str) -> str:
        """Save a note as Markdown. Replaces the note with the same title."""
        path = self._path(title)
        self.folder.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {' '.join(title.split())}\n\n{text.strip()}\n", encoding="utf-8")
        return f"saved as {path.name}"

    def read_note(self, title: str) -> str:
        """Read a note by its title or file name."""
        path = self._path(title.removesuffix(".md"))
        if not path.is_file():
            raise ValueError(f"no note '{title}'; existing notes: {self.list_notes()}")
        return path.read_text(encoding="utf-8")

    def list_notes(self) -> str:
        """List the file names of all notes, one per line."""
        return "\n".join(sorted(path.name for path in self.folder.glob("*.md"))) or "(no notes yet)"

    def _path(self, title: str) -> Path:
        """Return the file of a title: keep letters and digits of any script, and replace everything else with a
        dash.
        """
        name = re.sub(r"[\W_]+", "-", title.lower()).strip("-")[:MAX_NAME_LENGTH]
        if not name:
            raise ValueError("a title needs a letter or a digit")
        return self.folder / f"{name}.md"


async def main() -> None:
    """Offer the tools until the space ends."""
    notes = Notes(Path(sys.argv[1] if len(sys.argv) > 1 else "notes"))
    me = Participant.from_environment()
    for tool in (notes.save_note, notes.read_note, notes.list_notes):
        me.tool(tool)
    await me.take_part()


if __name__ == "__main__":
    run(main)
