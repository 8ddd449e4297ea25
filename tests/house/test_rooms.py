"""Where code lives: packages are documented and tested, import in one direction, and name each class once."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from benchmarks.size import MOST_CORE, core_share, rooms
from tests.house.conftest import ROOT, Module, walk


def test_every_package_has_tests(modules: list[Module]) -> None:
    """A package's tests live at the same path under `tests`, in a folder or in a file of the package's name."""
    missing = []
    for package in {module.path.parent for module in modules if module.has_code and module.path.name != "__init__.py"}:
        place = ROOT / "tests" / str(package).replace("mew_protocol", "").replace("mew_spaces", "")
        if package.parts[:2] == ("mew_agent", "parts"):
            place = ROOT / "tests" / "parts" / Path(*package.parts[2:])
        if not any(place.rglob("test_*.py")) and not (place.parent / f"test_{place.name}.py").exists():
            missing.append(package.as_posix())
    assert not missing, f"packages without tests: {missing}"


def test_every_module_says_what_it_owns(modules: list[Module]) -> None:
    silent = [module.path.as_posix() for module in modules if module.has_code and not module.docstring]
    assert not silent


def test_the_core_is_at_most_three_quarters() -> None:
    lines = rooms()
    assert lines.total() > 60_000
    assert core_share(lines) <= MOST_CORE, "move what is optional to `parts`, or remove what is superfluous"


def test_no_two_classes_share_a_name(modules: list[Module]) -> None:
    """A class name means one thing in all three packages, nested classes included."""
    defined: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        for node in walk(module.tree):
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(f"{module.path.as_posix()}:{node.lineno}")
    assert not {name: places for name, places in defined.items() if len(places) > 1}


def test_packages_import_each_other_in_one_direction(modules: list[Module]) -> None:
    """Inside each package, its direct children (modules and packages) form no cycle, not even by imports for types."""
    cycles = []
    for package, graph in sibling_imports(modules).items():
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            cycles.append(f"{package}: {' -> '.join(error.args[1])}")
    assert not cycles


def test_a_cycle_between_packages_is_found() -> None:
    graph = edges_by_package([("top.a.one", "top.b.two"), ("top.b.three", "top.a.four")])["top"]
    assert graph == {"a": {"b"}, "b": {"a"}}


def sibling_imports(modules: list[Module]) -> Mapping[str, Mapping[str, set[str]]]:
    """For each package: which of its direct children import which others."""
    known = {module.name for module in modules if module.has_code}
    return edges_by_package(
        (module.name, target)
        for module in modules
        for target in module.imports(with_types=True)
        if target in known and target != module.name
    )


def edges_by_package(imports: Iterable[tuple[str, str]]) -> Mapping[str, Mapping[str, set[str]]]:
    graphs: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for importer, target in imports:
        ours, theirs = importer.split("."), target.split(".")
        common = 0
        while common < min(len(ours), len(theirs)) and ours[common] == theirs[common]:
            common += 1
        if common and common < len(ours) and common < len(theirs):
            graphs[".".join(ours[:common])][ours[common]].add(theirs[common])
    return graphs


def private_names(tree: ast.AST) -> set[str]:
    """The private functions, attributes and variables that a part of a file defines, or imports from its part."""
    found: set[str] = set()
    for node in walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case _:
                pass
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def own_private_names(owner: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> set[str]:
    """The private names of a class and of its base classes in the same part."""
    bases = [classes[base.id] for base in owner.bases if isinstance(base, ast.Name) and base.id in classes]
    return private_names(owner).union(*(own_private_names(base, classes) for base in bases if base is not owner))


def borrowed_names(files: list[ast.Module], core: set[str]) -> Iterator[str]:
    """Yield each private name of the core that classes of a part use on themselves."""
    classes = {node.name: node for tree in files for node in walk(tree) if isinstance(node, ast.ClassDef)}
    for owner in classes.values():
        foreign = core - own_private_names(owner, classes)
        for node in walk(owner):
            match node:
                case ast.Attribute(value=ast.Name(id="self"), attr=name) if name in foreign:
                    yield f"{owner.name} uses {name}, line {node.lineno}"


def test_parts_use_no_private_name_of_the_core(modules: list[Module]) -> None:
    parts: dict[str, list[ast.Module]] = {}
    core: set[str] = set()
    for module in modules:
        before, is_part, after = module.name.partition(".parts.")
        if is_part:
            parts.setdefault(f"{before} {after.split('.')[0]}", []).append(module.tree)
        else:
            core |= private_names(module.tree)
    found = {name: borrowed for name, files in parts.items() if (borrowed := [*borrowed_names(files, core)])}
    assert not found
    subclass = ast.parse("class Mine(Engine):\n    def answer(self):\n        return self._me")
    assert [*borrowed_names([subclass], {"_me"})] == ["Mine uses _me, line 3"]
