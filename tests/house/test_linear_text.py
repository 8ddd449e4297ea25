"""Reading text of others costs linear time: every regular expression, text function and buffer is found and measured.

Whoever adds one that cannot be measured by itself gets a failing test, until it is registered below with an example or
with the reason why it needs none.
"""

import ast
import importlib
import inspect
import pkgutil
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from mew_protocol.patterns import Undecidable

from mew_agent.errors import MewAgentError
from tests.house.conftest import PACKAGES, ROOT, Module, walk
from tests.house.linear_register import (
    BOUNDED,
    BUFFERS,
    DOORS,
    EXAMPLES,
    EXCUSED,
    GROWING,
    PATTERNS,
    READERS,
    SEARCHED,
    SHORT,
)
from tests.support.linear import attacks_on, general_attacks, growth, superlinear_attack

Function = ast.FunctionDef | ast.AsyncFunctionDef

_METHODS = ("match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer")
_ALL = frozenset({"match", "fullmatch", "search", "sub"})
_LOOPS = (ast.For, ast.While, ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)
_TEXT = {"str", "bytes", "bytearray"}
_CONTAINERS = {"Sequence", "Iterable", "Iterator", "Collection", "list", "tuple", "set", "frozenset", "None"}
_SUPERLINEAR = {"difflib", "regex", "textwrap", "fnmatch", "unicodedata.normalize"}
"""Modules and functions that take more than linear time, or whose patterns this test would not find."""

_SEARCHES = ("count", "index", "rindex", "find", "rfind", "replace")
"""Methods that go through a whole text or list: in a loop they may do so again for each part."""


@dataclass
class Found:
    """A regular expression, where it is, and the methods by which it is used."""

    pattern: re.Pattern[Any]
    place: str
    methods: set[str] = field(default_factory=set)


# -- regular expressions -------------------------------------------------------------------------------------------


def test_every_regular_expression_takes_linear_time(modules: list[Module]) -> None:
    patterns = find_patterns(modules)
    assert len(patterns) > 100
    slow = {}
    for one in patterns:
        source = one.pattern.pattern
        is_bytes = isinstance(source, bytes)
        text = source.decode("latin-1") if isinstance(source, bytes) else source
        limit = BOUNDED.get(one.place)
        attack = superlinear_attack(user_of(one, is_bytes=is_bytes, limit=limit), attacks_on(text))
        if attack is not None:
            slow[one.place] = attack
    assert slow == {}


def test_a_quadratic_expression_is_found() -> None:
    for pattern, method in (
        (r"\s*$", "search"),
        (r"“[^”\n]*”", "sub"),
        (r"^#+\s*(.*?)\s*$", "match"),
        (r"(a|aa)*b", "match"),
    ):
        one = Found(re.compile(pattern), "here", {method})
        user = user_of(one, is_bytes=False, limit=None)
        # A busy machine may hide it once.
        assert any(superlinear_attack(user, attacks_on(pattern)) for _ in range(3)), pattern


def find_patterns(modules: list[Module]) -> list[Found]:
    """Return all regular expressions: constants of modules and classes, and those that functions write or make."""
    uses = uses_of_names(modules)
    found: dict[tuple[re.Pattern[Any], str], Found] = {}
    for module in loaded_modules():
        for name, value in list(vars(module).items()):
            owners = (
                [value, *vars(value).values()]
                if inspect.isclass(value) and value.__module__ == module.__name__
                else [value]
            )
            for pattern, method in (pair for owner in owners for pair in patterns_in(owner)):
                place = f"{module.__name__}.{name}"
                one = found.setdefault((pattern, ""), Found(pattern, place))
                one.methods |= {method} if method else uses[place] | uses[name]
    known = {pattern.pattern for pattern, _ in found}
    unknown = []
    for source in modules:
        namespace = {} if is_template(source) else vars(importlib.import_module(source.name))
        for call, method, outer in calls_of_re(source.tree):
            key = ".".join((source.name, *outer))
            try:
                values = [eval(compile(ast.Expression(call.args[0]), "", "eval"), {"re": re, **namespace})]
            except NameError:
                if key not in PATTERNS:
                    unknown.append(key)
                values = list(PATTERNS.get(key, ()))
            flags = [
                one for one in (*call.args[1:], *(given.value for given in call.keywords)) if "re." in ast.unparse(one)
            ]
            flag = eval(ast.unparse(flags[-1]), {"re": re}) if flags else 0
            for value in values:
                if method != "compile" or value not in known:
                    pattern = re.compile(value, flag)
                    one = found.setdefault((pattern, method), Found(pattern, key))
                    one.methods |= {method} if method in _METHODS else _ALL
    for one in found.values():
        one.methods = one.methods or set(_ALL)
    assert unknown == [], "register examples of these expressions in tests/house/linear_register.py"
    return list(found.values())


def patterns_in(value: object, depth: int = 0) -> Iterator[tuple[re.Pattern[Any], str | None]]:
    """Yield the patterns in a constant, and the method if only that one is kept."""
    if isinstance(value, re.Pattern):
        yield value, None
    elif isinstance(owner := getattr(value, "__self__", None), re.Pattern):
        yield owner, getattr(value, "__name__", "search")
    elif isinstance(value, Mapping) and depth < 3:
        for one in list(value.values()):
            yield from patterns_in(one, depth + 1)
    elif isinstance(value, list | tuple | set | frozenset) and depth < 3:
        for one in value:
            yield from patterns_in(one, depth + 1)


def user_of(one: Found, *, is_bytes: bool, limit: int | None) -> Callable[[str], None]:
    """Return a function that uses a pattern on a text in all ways in which the code uses it."""

    def use(text: str) -> None:
        given: Any = text[:limit].encode("utf-8", "surrogatepass") if is_bytes else text[:limit]
        for method in one.methods:
            match method:
                case "sub" | "subn":
                    one.pattern.sub(given[:0], given)
                case "finditer":
                    for _ in one.pattern.finditer(given):
                        pass
                case _:
                    getattr(one.pattern, method)(given)

    return use


def uses_of_names(modules: list[Module]) -> dict[str, set[str]]:
    """Return the methods called on `module.NAME`, and on `NAME` by other modules; several if it is passed on."""
    uses: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        called: set[int] = set()
        for node in walk(module.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
                owner = node.func.value
                called.add(id(owner))
                name = f"{module.name}.{owner.id}" if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
                uses[name].add(node.func.attr)
        for node in walk(module.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in called:
                uses[f"{module.name}.{node.id}"] |= _ALL
    return uses


def calls_of_re(node: ast.AST, outer: tuple[str, ...] = ()) -> Iterator[tuple[ast.Call, str, tuple[str, ...]]]:
    """Yield the calls of functions of `re` that take a pattern, their names, and the names of what contains them."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        outer = (*outer, node.name)
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=name)) if name in (*_METHODS, "compile"):
            yield node, name, outer
        case _:
            pass
    for child in ast.iter_child_nodes(node):
        yield from calls_of_re(child, outer)


def test_patterns_are_only_made_where_this_test_finds_them(modules: list[Module]) -> None:
    hidden = [
        f"{module.name}: {name}"
        for module in modules
        for name in module.imports()
        if name.startswith("re.")
        or ({name, name.partition(".")[0]} & _SUPERLINEAR and f"{module.name}: {name}" not in EXCUSED)
    ]
    assert hidden == []
    # Python takes quadratic time to put marks of several kinds into their order.
    texts = {one.name: (ROOT / one.path).read_text(encoding="utf-8") for one in modules}
    assert [name for name, text in texts.items() if "unicodedata.normalize(" in text] == []
    # The engine of pydantic's own patterns takes linear time, Python's does not.
    assert [name for name, text in texts.items() if "regex_engine" in text] == []


# -- functions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextFunction:
    """A function that goes through a text: its key, and its parameters by name with their annotations."""

    key: str
    module: Module
    node: Function
    texts: frozenset[str]
    is_plain: bool


@pytest.fixture(scope="module")
def text_functions(modules: list[Module]) -> list[TextFunction]:
    """The functions that `find_text_functions` finds, which takes a second."""
    return find_text_functions(modules)


@pytest.fixture(scope="module")
def searches(modules: list[Module]) -> set[str]:
    """The functions that search in a loop."""
    return find_searches(modules)


@pytest.fixture(scope="module")
def growing(modules: list[Module]) -> set[str]:
    """The attributes of texts and bytes that methods add to."""
    return {key for module in modules for key in growing_attributes(module)}


def test_every_text_function_takes_linear_time(text_functions: list[TextFunction]) -> None:
    assert len(text_functions) > 80
    missing, slow = [], {}
    for one in text_functions:
        run = EXAMPLES.get(one.key) or (None if one.key in EXCUSED else caller_of(one))
        if run is None:
            missing += [one.key] if one.key not in EXCUSED else []
            continue
        attack = superlinear_attack(run, general_attacks(), finalists=2)
        if attack is not None:
            slow[one.key] = attack
    assert missing == [], "register how to call these functions in tests/house/linear_register.py"
    assert slow == {}


def test_every_search_in_a_loop_is_measured_or_bounded(text_functions: list[TextFunction], searches: set[str]) -> None:
    """Also of texts that are no parameters: fields of envelopes, of items, of files."""
    known = {one.key for one in text_functions}
    assert searches - known - set(SEARCHED) == set()


@pytest.mark.parametrize("door", sorted(DOORS))
def test_every_whole_path_takes_linear_time(door: str) -> None:
    assert superlinear_attack(DOORS[door], general_attacks(), finalists=2) is None


def test_the_register_names_only_what_exists(
    modules: list[Module], text_functions: list[TextFunction], searches: set[str], growing: set[str]
) -> None:
    known = {one.key for one in text_functions}
    imported = {f"{module.name}: {name}" for module in modules for name in module.imports()}
    assert set(EXCUSED) - known - imported == set()
    assert set(SEARCHED) - searches == set()
    assert (set(GROWING) | set(BUFFERS)) - growing == set()
    assert set(BUFFERS.values()) <= set(READERS)


def find_text_functions(modules: list[Module]) -> list[TextFunction]:
    """Return the functions that loop over a text or texts, cut them, or search them with a regular expression."""
    found = []
    for module in modules:
        for qualified, node, in_class in functions_in(module.tree, ""):
            texts = frozenset(
                one.arg
                for one in parameters_of(node)
                if one.arg not in SHORT and one.annotation is not None and is_text(one.annotation)
            )
            if texts and any(goes_through(part, texts) for part in walk(node)):
                found.append(
                    TextFunction(
                        f"{module.name}.{qualified}", module, node, texts, not in_class and "." not in qualified
                    )
                )
    return found


def find_searches(modules: list[Module]) -> set[str]:
    """Return the functions that search in a loop."""
    return {
        f"{module.name}.{qualified}"
        for module in modules
        for qualified, node, _ in functions_in(module.tree, "")
        if any(is_search_in_loop(part) for part in walk(node))
    }


def is_search_in_loop(node: ast.AST) -> bool:
    return isinstance(node, (*_LOOPS, ast.AsyncFor)) and any(
        isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr in _SEARCHES
        for one in walk(node)
    )


def functions_in(node: ast.AST, outer: str, in_class: bool = False) -> Iterator[tuple[str, Function, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield f"{outer}{child.name}", child, in_class
            yield from functions_in(child, f"{outer}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from functions_in(child, f"{outer}{child.name}.", True)
        else:
            yield from functions_in(child, outer, in_class)


def parameters_of(node: Function) -> list[ast.arg]:
    given = node.args
    return [*given.posonlyargs, *given.args, *([given.vararg] if given.vararg else []), *given.kwonlyargs]


def is_text(annotation: ast.expr) -> bool:
    """Whether an annotation means text, or a series of texts."""
    names = {one.id for one in walk(annotation) if isinstance(one, ast.Name)}
    return bool(names & _TEXT) and names <= _TEXT | _CONTAINERS


def goes_through(node: ast.AST, texts: frozenset[str]) -> bool:
    """Whether a part of a function loops with a text, or uses a regular expression on it."""
    is_search = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS
    if not (isinstance(node, _LOOPS) or is_search):
        return False
    return any(isinstance(one, ast.Name) and one.id in texts for one in walk(node))


def caller_of(one: TextFunction) -> Callable[[str], object] | None:
    """Return how to call a pure function whose parameters speak for themselves; None for all others."""
    if not one.module.is_pure or not one.is_plain or isinstance(one.node, ast.AsyncFunctionDef):
        return None
    function = inspect.unwrap(getattr(importlib.import_module(one.module.name), one.node.name))
    annotations = {given.arg: ast.unparse(given.annotation) for given in parameters_of(one.node) if given.annotation}
    keywords: dict[str, Callable[[str], Any]] = {}
    is_series = False
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = annotations.get(name, "")
        if parameter.kind is parameter.VAR_POSITIONAL and name in one.texts:
            is_series = True
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            pass
        elif name in one.texts or parameter.default is parameter.empty:
            if annotation in _VALUES:
                keywords[name] = _VALUES[annotation] if name in one.texts or "str" not in annotation else _a_name
            elif name in one.texts:
                keywords[name] = _as_set if "set" in annotation else _in_pieces
            else:
                return None

    def call(text: str) -> None:
        given = {name: make(text) for name, make in keywords.items()}
        try:
            result = function(*(_in_pieces(text) if is_series else ()), **given)
            if isinstance(result, Iterator):
                for _ in result:
                    pass
        except (ValueError, Undecidable, MewAgentError):
            pass  # the text is refused

    return call


def _a_name(_text: str) -> str:
    return "ada"


def _as_set(text: str) -> frozenset[str]:
    return frozenset(_in_pieces(text))


def _in_pieces(text: str) -> list[str]:
    return [text[at : at + 16] for at in range(0, len(text), 16)]


_VALUES: dict[str, Callable[[str], Any]] = {
    "str": str,
    "str | None": str,
    "bytes": lambda text: text.encode("utf-8", "surrogatepass"),
    "int": lambda _text: 80,
    "bool": lambda _text: True,
}


# -- buffers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", sorted(READERS))
def test_many_small_pieces_cost_as_much_as_one(reader: str) -> None:
    for piece in ("a", "\u0301", "\n", " ", 'data: {"a": "', "data: {}\n\n"):
        # Some readers look again at a bounded part, so that only many pieces show what they cost.
        assert growth(READERS[reader], partial(repeat_in_list, piece), repr(piece), first=1_024) is None


def repeat_in_list(piece: str, count: int) -> list[str]:
    return [piece] * count


def test_every_text_that_grows_in_pieces_is_registered(growing: set[str]) -> None:
    """An attribute that a text is added to is copied with every piece: a list of pieces is joined once."""
    assert growing - set(GROWING) - set(BUFFERS) == set()


def growing_attributes(module: Module) -> Iterator[str]:
    """Yield the attributes of texts and bytes that a method adds to."""
    texts: set[str] = set()
    for node in walk(module.tree):
        match node:
            case ast.AnnAssign(target=target, annotation=kind, value=value):
                is_text_by_value = value is not None and is_empty_text(value)
                texts |= {name_of(target)} if is_text_by_value or ast.unparse(kind) in _TEXT else set()
            case ast.Assign(targets=[ast.Tuple(elts=targets), *_], value=ast.Tuple(elts=values)):
                pairs = zip(targets, values, strict=False)
                texts |= {name_of(target) for target, value in pairs if is_empty_text(value)}
            case ast.Assign(targets=[target, *_], value=value) if is_empty_text(value):
                texts.add(name_of(target))
            case _:
                pass
    for node in walk(module.tree):
        match node:
            case ast.AugAssign(target=ast.Attribute(attr=name), op=ast.Add()) if name in texts:
                yield f"{module.name}.{name}"
            case ast.Assign(
                targets=[ast.Attribute() as target], value=ast.BinOp() | ast.JoinedStr() | ast.Subscript() as value
            ):
                is_grown = not isinstance(value, ast.Subscript) or isinstance(value.value, ast.JoinedStr | ast.BinOp)
                if is_grown and target.attr in texts and ast.unparse(target) in ast.unparse(value):
                    yield f"{module.name}.{target.attr}"
            case _:
                pass


def name_of(target: ast.expr) -> str:
    return target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")


def is_empty_text(value: ast.expr) -> bool:
    return ast.unparse(value) in ("''", "b''", "bytearray()", "field(default_factory=bytearray)")


# -- the packages ------------------------------------------------------------------------------------------------------


def is_template(module: Module) -> bool:
    """Whether a file is copied to users, and not part of the package."""
    return "templates/" in module.path.as_posix() or module.name.endswith("__main__")


def loaded_modules() -> list[Any]:
    """Import every module of the packages."""
    roots = [path.rpartition("/")[2] for path in PACKAGES]
    for root in roots:
        for one in pkgutil.walk_packages(importlib.import_module(root).__path__, f"{root}."):
            if ".templates" not in one.name and not one.name.endswith("__main__"):
                importlib.import_module(one.name)
    return [module for name, module in sorted(sys.modules.items()) if name.partition(".")[0] in roots]
