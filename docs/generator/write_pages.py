"""Writes the pages that would otherwise repeat the code: commands, configuration and Python names.

    python docs/generator/write_pages.py

`make docs` runs it first. The pages are not committed. It is a script and no plugin, so that any site builder can use
the folder: the one we use reaches its end of life in May 2027, and its successor runs no hooks.
"""

import shutil
from pathlib import Path

import command_page
import config_pages
import python_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ICON = ROOT / "spaces" / "mew_spaces" / "dashboard" / "icon.svg"


def write_pages() -> None:
    """Write the pages, and copy the icon that the dashboard uses."""
    pages = {
        "reference/cli.md": command_page.command_page(),
        "reference/space-yaml.md": config_pages.space_page(),
        "reference/agent-config.md": config_pages.agent_page(),
        "reference/python.md": python_page.python_page(),
    }
    for name, text in pages.items():
        (DOCS / name).write_text(text, encoding="utf-8")
    shutil.copyfile(ICON, DOCS / "pictures" / "icon.svg")


if __name__ == "__main__":
    write_pages()
