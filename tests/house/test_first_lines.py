"""The first line of a docstring is one plain statement."""

import ast
import re

from tests.house.conftest import Module, walk

_CLAUSE = re.compile(r"\b(what|whose|who|whom|besides|behind|beside|those of)\b", re.IGNORECASE)


def first_lines(tree: ast.Module) -> list[str]:
    """Return the first line of each docstring of a module."""
    found = []
    for node in walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                found.append(text.splitlines()[0])
    return found


def test_few_first_lines_hold_a_clause_instead_of_a_noun(modules: list[Module]) -> None:
    """At most one of 100: "Return what is known of it" hides its subject, "Return its receipts" names it."""
    lines = [line for module in modules for line in first_lines(module.tree)]
    assert len(lines) > 4_000
    clauses = [line for line in lines if _CLAUSE.search(line)]
    assert len(clauses) <= len(lines) / 100, "\n".join(clauses)


def test_a_clause_is_found_in_a_first_line() -> None:
    assert first_lines(ast.parse('"""One."""\ndef f():\n    """Return what is left.\n\n    More."""')) == [
        "One.",
        "Return what is left.",
    ]
    assert _CLAUSE.search("Return what is left.")
    assert not _CLAUSE.search("Return the whole rest.")
