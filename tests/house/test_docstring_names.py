"""Names of modules in the docstrings of modules: each exists."""

import ast
import re

import pytest

from tests.house.conftest import Module

OTHERS = re.compile(
    r".*\.(json|md|py|js)|(html|json|anyio)\..*"  # files, and functions of libraries
    r"|payload\..*|attention\.webhook"  # keys of the wire and of space.yaml, tables of entry points
    r"|mew_(agent|spaces)\.(commands|participants|models|tokenizers|acp_profiles|terminals|storages|documents|templates)"
)

LISTED = re.compile(r"^- `(\w+)`:", re.MULTILINE)


def defined_in(module: Module) -> set[str]:
    """The names that a module defines or imports."""
    found: set[str] = set()
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {one.asname or one.name for one in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {one.id for one in targets if isinstance(one, ast.Name)}
    return found


@pytest.fixture(scope="module")
def names(modules: list[Module]) -> tuple[str, ...]:
    """The dotted names of all modules and of what they define, each after a dot."""
    own = (f".{one.name}" for one in modules)
    return (*own, *(f".{one.name}.{name}" for one in modules for name in defined_in(one)))


def test_dotted_names_in_docstrings_of_modules_exist(modules: list[Module], names: tuple[str, ...]) -> None:
    named = [
        (str(one.path), name)
        for one in modules
        for name in re.findall(r"`([a-z_]\w*(?:\.[a-z_]\w*)+)`", one.docstring)
        if not OTHERS.fullmatch(name)
    ]
    assert len(named) > 20
    assert [pair for pair in named if not any(one.endswith(f".{pair[1]}") for one in names)] == []


def test_packages_list_modules_that_exist(modules: list[Module]) -> None:
    known = {one.name for one in modules}
    listed = [f"{one.name}.{name}" for one in modules for name in LISTED.findall(one.docstring)]
    assert listed
    assert set(listed) <= known
