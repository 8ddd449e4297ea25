"""The source tree as data, for the tests of the house's rules."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "protocol/mew_board",
    "protocol/mew_listener",
    "protocol/mew_protocol",
    "protocol/mew_settings",
    "spaces/mew_spaces",
    "mew_agent",
)


@dataclass(frozen=True)
class Module:
    """One source file: its path from the root, its dotted name, its syntax tree."""

    path: Path
    name: str
    tree: ast.Module

    @property
    def docstring(self) -> str:
        return ast.get_docstring(self.tree) or ""

    @property
    def is_pure(self) -> bool:
        return self.docstring.startswith("[pure]")

    @property
    def has_code(self) -> bool:
        """Whether there is anything but a docstring."""
        return len(self.tree.body) > 1 or (bool(self.tree.body) and not self.docstring)

    @cache  # noqa: B019 - cleared with the trees
    def imports(self, *, with_types: bool = False) -> set[str]:
        """Dotted names of everything imported anywhere in the file, with or without imports for types only."""
        blocks = [] if with_types else [node for node in walk(self.tree) if _is_for_types(node)]
        left_out = {node for block in blocks for node in walk(block)}
        found: set[str] = set()
        for node in walk(self.tree):
            if node in left_out:
                continue
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
        return found

    def modules_in_strings(self) -> set[str]:
        """Dotted names of our modules in strings, such as `"mew_agent.program:run"`; docstrings are left out."""
        texts = {id(node.value) for node in walk(self.tree) if isinstance(node, ast.Expr)}
        found: set[str] = set()
        for node in walk(self.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
                found |= set(re.findall(r"\bmew_\w+(?:\.\w+)+", node.value))
        return found


@cache
def walk(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return a syntax tree's nodes in the order of `ast.walk`, which takes a second for all modules together."""
    return tuple(ast.walk(tree))


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@pytest.fixture(scope="package")
def modules() -> Iterator[list[Module]]:
    """Every source file of the three packages."""
    found = []
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            path = file.relative_to(ROOT)
            parts = file.relative_to((ROOT / package).parent).with_suffix("").parts
            name = ".".join(parts).removesuffix(".__init__")
            found.append(Module(path, name, ast.parse(file.read_text(encoding="utf-8"))))
    yield found
    walk.cache_clear()
    Module.imports.cache_clear()
