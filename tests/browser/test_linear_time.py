"""The page reads texts of others in linear time: each of its regular expressions and text functions is measured.

What there is to measure is found in the sources. A new regular expression is measured without further ado; a new
exported function fails until `linear_time.js` says how it reads a text, or `NO_TEXT` why it reads none.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import tree_sitter_javascript
from mew_spaces.gateway.dashboard_files import DASHBOARD
from playwright.async_api import JSHandle, Page
from tree_sitter import Language, Node, Parser

from tests import vendor

NO_TEXT: Final = {
    "actions.js:ACTIONS": "a table; its payloads hold what the user types",
    "actions.js:MEMBERSHIP": "a table",
    "actions.js:ROLES": "a table",
    "add.js:AddForm": "a form; it shows ids of participants, whose length the gateway limits",
    "chart.js:timeTicks": "numbers",
    "chart.js:amountTicks": "numbers",
    "chart.js:runsOf": "numbers",
    "commands.js:InvalidCommand": "an error",
    "commands.js:COMMANDS": "a table; readLine uses it",
    "composer.js:Composer": "the user's own text, which readLine and complete read",
    "detail.js:rangeChoice": "a fixed choice",
    "dom.js:byId": "ids of the page itself",
    "dom.js:copyText": "hands the text to the browser",
    "dom.js:isPressed": "reads nothing",
    "dom.js:makeOption": "ids of participants, whose length the gateway limits, and fixed choices",
    "dom.js:replaceChildren": "nodes, and the keys of controls, whose length the gateway limits",
    "dom.js:makeSelect": "ids of participants, whose length the gateway limits, and fixed choices",
    "earlier.js:EarlierMessages": "positions; the messages go to Conversation",
    "events.js:EventFeed": "the text goes to EventParser",
    "overview.js:Overview": "ids of participants, whose length the gateway limits",
    "participant_list.js:drawGauge": "numbers",
    "participant_list.js:makeGauge": "an empty gauge",
    "requests.js:START_TIMEOUT_MS": "a number",
    "requests.js:Refused": "an error",
    "requests.js:newId": "reads nothing",
    "session.js:takeFragment": "the user's own link",
    "session.js:stored": "what this page stored",
    "session.js:store": "what this page stores",
    "session.js:isWhole": "asks which fields there are",
    "series.js:SeriesColours": "ids of participants, whose length the gateway limits",
    "session.js:putInAddress": "ids of participants, whose length the gateway limits",
    "session.js:shownInAddress": "the user's own link",
    "session.js:gatewayUrl": "paths of the page itself",
    "settings.js:start": "reads nothing",
    "settings.js:notify": "hands the text to the browser",
    "settings.js:inOne": "counts",
    "text.js:grouped": "a number",
    "text.js:span": "a number",
    "text.js:clock": "a number",
}

PARSER: Final = Parser(Language(tree_sitter_javascript.language()))
MODULES: Final = sorted(DASHBOARD.glob("*.js"))


def nodes(module: Path) -> Iterator[Node]:
    """Every node of a module's syntax tree."""
    waiting = [PARSER.parse(module.read_bytes()).root_node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.children


def source(node: Node | None) -> str:
    """The text of a node; empty without one."""
    return "" if node is None or node.text is None else node.text.decode()


def exports(module: Path) -> Iterator[str]:
    """The names that a module exports, as `file:name`."""
    for node in nodes(module):
        if node.type != "export_statement":
            continue
        declaration = node.child_by_field_name("declaration")
        assert declaration is not None, f"{module.name}: export what you declare: {source(node)}"
        named = declaration.named_children if declaration.type == "lexical_declaration" else [declaration]
        yield from (f"{module.name}:{source(one.child_by_field_name('name'))}" for one in named)


def patterns(module: Path) -> Iterator[tuple[str, str]]:
    """The source and the flags of each regular expression of a module."""
    for node in nodes(module):
        if node.type == "regex":
            yield source(node.child_by_field_name("pattern")), source(node.child_by_field_name("flags"))


EXPORTS: Final = [name for module in MODULES for name in exports(module)]
PATTERNS: Final = sorted({pattern for module in MODULES for pattern in patterns(module)})


@pytest.fixture(scope="module")
async def meter(sign_in_page: Page) -> JSHandle:
    """The measurements, in one page for all."""
    return await sign_in_page.evaluate_handle((Path(__file__).parent / "linear_time.js").read_text(encoding="utf-8"))


def test_the_parser_of_others_is_the_version_that_is_named() -> None:
    published = (DASHBOARD / "vendor" / Path(vendor.FILE).name).read_text(encoding="utf-8")
    assert published.startswith(f"/*! {vendor.PACKAGE} {vendor.VERSION} ")
    named = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert f"{vendor.PACKAGE} {vendor.VERSION} as published" in named


def test_every_module_parses_and_none_makes_an_expression_from_text() -> None:
    for module in MODULES:
        made = [
            f"{module.name}:{node.start_point.row + 1}: {source(node)}"
            for node in nodes(module)
            if node.type == "ERROR"
            or (node.type == "identifier" and source(node) == "RegExp" and not _is_of_our_file(node))
            or _makes_one(node)
        ]
        assert made == []
    assert len(PATTERNS) > 20


def _is_of_our_file(node: Node) -> bool:
    """Whether `RegExp` makes one class of characters from the file that the terminal reads too."""
    return node.parent is not None and source(node.parent).startswith("new RegExp(`^[${LOOK_ALIKES.")


def _makes_one(node: Node) -> bool:
    """Whether a call makes a regular expression from a string, as `text.match(name)` does."""
    called = node.child_by_field_name("function")
    if node.type != "call_expression" or called is None or called.type != "member_expression":
        return False
    if source(called.child_by_field_name("property")) not in ("match", "matchAll", "search"):
        return False
    given = node.child_by_field_name("arguments")
    first = given.named_children[0] if given is not None and given.named_children else None
    return first is None or not (first.type == "regex" or re.fullmatch(r"[A-Z_]+", source(first)))


async def test_the_measurement_tells_linear_from_quadratic_and_cubic(meter: JSHandle) -> None:
    assert await meter.evaluate("one => one.measureKnown()") == {"linear": False, "quadratic": True, "cubic": True}


async def test_every_exported_function_is_measured_or_reads_no_text(meter: JSHandle) -> None:
    measured = set(await meter.evaluate("one => one.functions()"))
    assert measured & set(NO_TEXT) == set()
    assert measured | set(NO_TEXT) == set(EXPORTS)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda one: f"/{one[0]}/{one[1]}")
async def test_a_regular_expression_takes_linear_time(meter: JSHandle, pattern: tuple[str, str]) -> None:
    assert await meter.evaluate("(one, pattern) => one.measurePattern(pattern)", list(pattern)) == []


@pytest.mark.parametrize("name", [name for name in EXPORTS if name not in NO_TEXT])
async def test_a_function_reads_a_text_in_linear_time(meter: JSHandle, name: str) -> None:
    assert await meter.evaluate("(one, name) => one.measureFunction(name)", name) == []


async def test_many_things_of_one_member_take_linear_time(meter: JSHandle) -> None:
    found = {}
    for name in await meter.evaluate("one => one.many()"):
        if problems := await meter.evaluate("(one, name) => one.measureMany(name)", name):
            found[name] = problems
    assert found == {}
