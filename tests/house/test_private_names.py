"""No private class, module or attribute of a library, but for exceptions that say why."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module

import pytest

from tests.house.conftest import Module, walk

OURS = ("mew_", "benchmarks", "tests")

OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}

INTERNALS = {"__code__", "__globals__", "__closure__", "__mro__", "__wrapped__", "__bases__", "__subclasses__"}
"""Public names of the language that reach into how a library is written."""


def is_private(name: str) -> bool:
    """Whether a name is private, or one of a library's own between double underscores, such as pydantic's."""
    if name.startswith("__") and name.endswith("__"):
        return name in INTERNALS or name.startswith("__pydantic_")
    return name.startswith("_") and name.strip("_") != ""


def defined_in(tree: ast.AST) -> set[str]:
    """The names that a module or class gives to something: functions, classes, variables, fields, attributes."""
    found: set[str] = set()
    for node in walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store(), value=ast.Name(id="self")):
                found.add(name)
            case _:
                pass
    return found


@cache
def library_names(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Return what a module imports from libraries: its name here, then its module and its name there."""
    return {
        alias.asname or alias.name: (one.module, alias.name)
        for one in walk(tree)
        if isinstance(one, ast.ImportFrom) and one.module and not one.module.startswith(OURS)
        for alias in one.names
    }


def library_bases(tree: ast.Module, node: ast.ClassDef) -> Iterator[type]:
    """Yield the bases of a class that a library defines."""
    origins = library_names(tree) if node.bases else {}
    for base in node.bases:
        name = ast.unparse(base).partition("[")[0]
        if name in origins:
            module, attribute = origins[name]
            found = getattr(import_module(module), attribute)
            if isinstance(found, type) and module.partition(".")[0] not in sys.stdlib_module_names:
                yield found


def private_uses(tree: ast.Module, ours: set[str]) -> Iterator[str]:
    """Yield each private name of a library that a module uses. `ours` are the names of our own."""
    own = defined_in(tree)
    for node in walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if not module.startswith(OURS):
                yield from filter(is_private, (*module.split("."), *(alias.name for alias in names)))
            case ast.Import(names=names):
                yield from filter(is_private, (part for one in names for part in one.name.split(".")))
            case ast.Attribute(attr=name, value=ast.Name(id="self" | "cls")) if is_private(name) and name in ours:
                pass  # of our own class; what a subclass takes from a library's is below
            case ast.Attribute(attr=name) if is_private(name) and name not in own:
                yield name
            case ast.ClassDef():
                yield from _taken_from_bases(tree, node)
            case _:
                pass


def _taken_from_bases(tree: ast.Module, node: ast.ClassDef) -> Iterator[str]:
    """Yield private names that a subclass of a library's class replaces, calls, or sets first outside of `__init__`."""
    bases = [*library_bases(tree, node)]
    methods = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    names = {one.name for one in methods}
    yield from (name for name in names if is_private(name) and any(hasattr(base, name) for base in bases))
    outside = [one for one in node.body if one not in methods]
    fields = {name for one in outside for name in defined_in(one)}
    begun = {name for one in methods if one.name == "__init__" for name in defined_in(one)}
    later = {name for one in methods for name in defined_in(one) if bases} - names - begun - fields
    yield from filter(is_private, later)


ALLOWED = {
    "mew_agent/cli/app/exit_codes.py": {"_value_"},
    "mew_agent/cli/app/signals.py": {"_exit"},
    "mew_agent/cli/app/terminal.py": {"_typeshed"},
    "mew_agent/failed_connections.py": {"__mro__"},
    "mew_agent/program.py": {"_exit"},
}
"""Names in the documentation of Python."""

EXCEPTIONS = {
    "mew_agent/parts/mcp/offers_server.py": {"_connection"},
    "mew_agent/parts/tokenizers/families.py": {"__code__"},
    "spaces/mew_spaces/parts/jetstream/nats_link.py": {
        "_close",
        "_pending",
        "_pending_data_size",
        "_process_headers",
        "_server_info",
    },
}
"""Private names without a documented alternative. The module that uses one explains what fails without it."""


@pytest.fixture(scope="module")
def found(modules: list[Module]) -> dict[str, set[str]]:
    ours = {name for module in modules for name in defined_in(module.tree)}
    uses = {module.path.as_posix(): {*private_uses(module.tree, ours)} - OF_NAMED_TUPLES for module in modules}
    return {path: names for path, names in uses.items() if names}


def test_private_names_of_libraries_are_the_listed_exceptions(found: dict[str, set[str]]) -> None:
    assert found == ALLOWED | EXCEPTIONS


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("from nats.aio import _client", "_client"),
        ("import httpx2._sse", "_sse"),
        ("def f(ctx):\n    return ctx.session._connection", "_connection"),
        ("def f(model):\n    return model.__pydantic_validator__", "__pydantic_validator__"),
        ("def f(call):\n    return call.__code__", "__code__"),
        ("from pydantic import BaseModel\nclass A(BaseModel):\n    def _iter(self): return super()._iter()", "_iter"),
        ("from nats.aio.client import Client\nclass A(Client):\n    def f(self): self._pending = 1", "_pending"),
        ("from nats.aio.client import Client\nclass A(Client):\n    def _close(self): pass", "_close"),
    ],
)
def test_the_rule_sees_a_private_name(code: str, name: str) -> None:
    assert name in {*private_uses(ast.parse(code), set())}


def test_the_rule_lets_our_own_names_pass() -> None:
    code = (
        "class A:\n    def __init__(self): self._x = 1\n    def f(self, other): return self._x + other._x + self._base"
    )
    assert not {*private_uses(ast.parse(code), {"_base"})}
