"""Every rule has a test, and every test has a rule."""

import ast
import re
from pathlib import Path

from tests.conformance.rules import RULES

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]


def rules_of(test: ast.AST) -> list[str]:
    """Return the ids in a test's `@rule(...)`."""
    assert isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef)
    return [
        argument.value
        for decorator in test.decorator_list
        if isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Name) and decorator.func.id == "rule"
        for argument in decorator.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]


def marked_tests() -> dict[str, list[str]]:
    """Return the other tests of this folder with their rules."""
    found: dict[str, list[str]] = {}
    for file in FOLDER.glob("test_*.py"):
        if file == Path(__file__):
            continue
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found[f"{file.name}::{node.name}"] = rules_of(node)
    return found


def test_every_rule_has_a_test() -> None:
    held = {one for ids in marked_tests().values() for one in ids}
    assert sorted(RULES.keys() - held) == []


def test_every_test_has_a_rule() -> None:
    assert [name for name, ids in marked_tests().items() if not ids] == []


def test_every_source_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "wire.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| (\d+) \|", page, re.MULTILINE))
    for name, rule in RULES.items():
        for source in rule.source.split("; "):
            assert re.fullmatch(r"reference|spec \d+(\.\d+)*|decision \d+", source), name
            if source.startswith("decision"):
                assert source.split()[1] in documented, f"{name}: {source} is not in docs/reference/wire.md"
        assert rule.text.endswith("."), name
