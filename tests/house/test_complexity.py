"""How large functions get: the definition of their complexity, and how many may be over 10."""

import ast

import pytest

from benchmarks.complexity import MOST_OF_A_THOUSAND, complexity_of, counted_functions, share_over
from tests.house.conftest import Module, walk


def test_few_functions_hold_more_than_ten_decisions(modules: list[Module]) -> None:
    functions = counted_functions((module.path, walk(module.tree)) for module in modules)
    assert len(functions) > 4_000
    assert share_over(functions) <= MOST_OF_A_THOUSAND, (
        "split the functions that `python -m benchmarks.complexity` lists"
    )


@pytest.mark.parametrize(
    ("body", "complexity"),
    [
        ("return 1", 1),
        ("if a and b or c:\n        return 1", 4),
        ("return 1 if a else 2", 2),
        ("return [x for x in a if x if not x]", 4),
        ("for x in a:\n        pass\n    else:\n        pass", 2),
        ("try:\n        pass\n    except A:\n        pass\n    except B:\n        pass", 3),
        ("match a:\n        case 1:\n            pass\n        case _:\n            pass", 2),
        ("match a:\n        case _ if b:\n            pass", 2),
        ("def inner():\n        return a or b", 1),
        ("return lambda: a or b", 2),
    ],
)
def test_complexity_counts_branches_and_boolean_operators(body: str, complexity: int) -> None:
    assert complexity_of(ast.parse(f"def function():\n    {body}\n").body[0]) == complexity
