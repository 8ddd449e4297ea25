"""Fails if a page of the built site loads anything from another host.

python docs/generator/check_site.py site
"""

import re
import sys
from pathlib import Path

LOADED = re.compile(r"<(?:script|img|link|iframe)[^>]+(?:src|href)=\"(?:https?:)?//[^\"]+")
LEAST_PAGES = 25


def check_site(folder: Path) -> None:
    """Exit with the elements that load from other hosts."""
    pages = list(folder.rglob("*.html"))
    if len(pages) <= LEAST_PAGES:
        sys.exit(f"{folder}: only {len(pages)} pages; expected more than {LEAST_PAGES}")
    found = [f"{page}: {tag}" for page in pages for tag in LOADED.findall(page.read_text(encoding="utf-8"))]
    if found:
        sys.exit("loaded from other hosts:\n" + "\n".join(found))


if __name__ == "__main__":
    check_site(Path(sys.argv[1]))
