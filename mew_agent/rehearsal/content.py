"""[pure] Reading the text of a chat message in the OpenAI shape.

Owns the two forms `content` may have; knows nothing of tokens or replies.
"""

from collections.abc import Mapping


def text_of(message: Mapping[str, object]) -> str:
    """The text of one message: a string, or the joined text parts of a list; "" for null or none."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return ""
