"""The package's root: every name is there and documented, and nothing is loaded before it is used."""

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

import pytest

import mew_agent
from benchmarks import imports

ROOT = Path(mew_agent.__file__).parent
SERVER_AND_MODEL = {"mew_spaces", "starlette", "uvicorn", "openai"}
NAMES = sorted(set(dir(mew_agent)) - {"__version__"})
CLASSES = {name: found for name in NAMES if inspect.isclass(found := getattr(mew_agent, name))}
STORES = {"MemoryStore", "SqliteStore", "Store"}
"""Classes that programs pass on without calling them."""

INTERNAL = {
    *("AgentAnswers", "Draft", "ExternalContext", "Fraction", "Hooks", "Listeners", "Messenger", "PeerChanges"),
    "TokenizerSettings",
}
"""Classes in members that only the package itself uses."""


def test_every_name_can_be_imported_and_is_documented() -> None:
    assert [name for name in NAMES if not is_documented(name, getattr(mew_agent, name))] == []


def is_documented(name: str, found: Any) -> bool:
    """Whether it has a docstring, which is not the signature that a dataclass makes up."""
    if isinstance(found, UnionType):
        return all(inspect.getdoc(one) for one in found.__args__)
    text = (found.__doc__ or "").strip()
    return bool(text) and not text.startswith(f"{name}(")


def test_every_public_method_is_documented() -> None:
    silent = [
        f"{name}.{key}"
        for name, found in CLASSES.items()
        for key, value in vars(found).items()
        if not key.startswith("_") and (inspect.isfunction(value) or isinstance(value, property | classmethod))
        if not inspect.getdoc(getattr(found, key) if not isinstance(value, property) else value)
    ]
    assert not silent


def test_type_checkers_and_programs_see_the_same_names() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    seen = {(node.module, alias.name) for node in imports for alias in node.names}
    assert seen == {(home, name) for name, home in mew_agent._HOMES.items()}
    assert {name for _, name in seen} == set(NAMES)
    assert mew_agent.__all__ == dir(mew_agent)


def test_every_error_is_importable_from_the_root() -> None:
    from mew_agent import errors

    ours = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert ours <= set(NAMES)


def test_every_class_that_a_public_class_uses_is_public() -> None:
    """Properties, methods and fields: what a program receives or passes can be written in its annotations."""
    used = {name: internal_classes(found) for name, found in CLASSES.items() if name not in STORES}
    assert {name: missing for name, missing in used.items() if missing} == {}


def internal_classes(found: type) -> set[str]:
    """The classes of ours that a public class uses and that are not public."""
    methods = [value.fget if isinstance(value, property) else value for value in vars(found).values()]
    ours = [one for one in methods if inspect.isfunction(one) and one.__module__.startswith("mew_")]
    hints = [get_type_hints(one) for one in ours if not one.__name__.startswith("_")]
    fields = {key: value for key, value in get_type_hints(found).items() if not key.startswith("_")}
    named = {one for hint in (fields, *hints) for value in hint.values() for one in classes_in(value)}
    return {one.__name__ for one in named if one.__module__.startswith("mew_")} - set(NAMES) - INTERNAL


def classes_in(hint: Any) -> Iterator[type]:
    """The classes in an annotation, those in its arguments included."""
    if inspect.isclass(hint):
        yield hint
    for argument in get_args(hint):
        yield from classes_in(argument)


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'mew_agent' has no attribute 'Agnet'"):
        _ = mew_agent.Agnet


# Each forbids what those before it forbid or do not load, so that one process runs them all, in this order.
LIGHT_IMPORTS = {
    "import mew_agent": {"pydantic", "anyio", "openai", "websockets", "starlette", "yaml", "typer"},
    "from mew_agent import Message, Model, ModelReply, ModelRequest, TextDelta, Usage, Window": (
        SERVER_AND_MODEL | {"anyio", "websockets", "yaml", "typer", "rich", "pytest"}
    ),
    "from mew_agent import Participant": SERVER_AND_MODEL | {"typer", "rich", "yaml", "sqlite3", "mcp"},
    "from mew_agent import Agent": SERVER_AND_MODEL | {"typer", "rich", "mcp"},
    "import mew_agent.cli.programs.start_gateway": {"nats"},  # only a space with a backplane needs it
}
HELP = {
    "from mew_agent.cli.main import run; run(['--help'])": (
        {"pydantic", "anyio", "openai", "websockets", "starlette", "yaml", "rich"}
    )
}


@pytest.mark.parametrize("programs", [LIGHT_IMPORTS, HELP], ids=["imports", "help"])
def test_import_loads_nothing_that_is_not_used(programs: dict[str, set[str]]) -> None:
    code = "".join(f"{program}\nprint('\\nLOADED', *sorted(sys.modules))\n" for program in programs)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=ROOT.parent,
    )
    loaded = [set(line.split()) for line in done.stdout.splitlines() if line.startswith("LOADED")]
    assert all("mew_agent" in names for names in loaded)
    assert [
        (program, heavy & names)
        for (program, heavy), names in zip(programs.items(), loaded, strict=True)
        if heavy & names
    ] == []


def test_a_participant_imports_with_few_more_calls_than_its_libraries() -> None:
    assert imports.times_of_libraries() <= imports.MOST_TIMES


def test_help_does_not_print_the_environment() -> None:
    for found in (mew_agent.Participant.from_environment, mew_agent.Agent.from_environment):
        assert inspect.signature(found).parameters["environ"].default is None
