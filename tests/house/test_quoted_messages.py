"""Messages that the troubleshooting page quotes are those of the code."""

import ast
import re

from tests.house.conftest import ROOT, Module, walk


def messages_of(modules: list[Module]) -> str:
    """Every string of the sources, one a line; what an f-string fills in is `...`."""
    lines: list[str] = []
    for node in (node for module in modules for node in walk(module.tree)):
        if isinstance(node, ast.JoinedStr):
            lines.append("".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            lines.append(node.value)
    return "\n".join(lines)


def test_messages_quoted_for_troubleshooting_are_those_of_the_code(modules: list[Module]) -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^\| `([a-zI][^`]* [^`]*?)` \|", page, re.MULTILINE)
    assert len(quoted) > 8
    known = messages_of(modules)
    missing = [text for text in quoted if not text.startswith("space.yaml:") and text.strip(". ") not in known]
    assert missing == []
