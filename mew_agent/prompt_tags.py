"""[pure] Texts of others in a prompt. Each has one author, and no text can fake another."""

import re
from collections.abc import Mapping
from typing import Final

_TAGS: Final = re.compile(r"<(?=\s*+(?:/\s*+)?(?:message|earlier_summary))", re.IGNORECASE)
_NOT_IN_ATTRIBUTE: Final = re.compile(r"[\"<>\r\n\x00-\x1f]")


def in_tag(text: str, about: Mapping[str, str]) -> str:
    """Return a message in a tag with attributes, as part of a prompt. Its text cannot close the tag."""
    attributes = "".join(f' {name}="{_NOT_IN_ATTRIBUTE.sub("_", value)}"' for name, value in about.items())
    return f"<message{attributes}>\n{without_tags(text)}\n</message>"


def spoken(text: str, author: str) -> str:
    """Return a prompt's message with its author: as a line `author: text`, or in a tag if it has several lines."""
    is_line = len(text.splitlines()) < 2
    return f"{author}: {without_tags(text)}" if is_line else in_tag(text, {"from": author})


def without_tags(text: str) -> str:
    """Return a text that can neither open nor close a tag of `in_tag`."""
    return _TAGS.sub(r"<\\", text)
