"""Counts the functions of the product that hold many decisions.

    python -m benchmarks.complexity

The complexity of a function is 1, plus 1 for each `if`, `elif`, `... if ... else ...`, `for`, `while`, `except` and
`case` (without `case _`), each operand of `and` and `or` after the first, and each `for` and `if` of a comprehension.
Inner functions and classes count for themselves, a lambda counts where it stands. Exits with 1 if more than 30 of 1,000
functions have more than 10.
"""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.size import PACKAGES, ROOT

MOST: Final = 10
MOST_OF_A_THOUSAND: Final = 30
_BRANCHES: Final = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler)
_OWN_COUNT: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class CountedFunction(NamedTuple):
    """A function and its complexity."""

    complexity: int
    place: str


def complexity_of(function: ast.AST) -> int:
    """Return the complexity of a function."""
    return 1 + sum(map(_decisions, _inside(function)))


def _decisions(node: ast.AST) -> int:
    match node:
        case ast.BoolOp(values=values):
            return len(values) - 1
        case ast.comprehension(ifs=ifs):
            return 1 + len(ifs)
        case ast.match_case(pattern=ast.MatchAs(pattern=None), guard=None):
            return 0
        case ast.match_case():
            return 1
        case _:
            return int(isinstance(node, _BRANCHES))


def _inside(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of inner functions and classes."""
    waiting = [*ast.iter_child_nodes(function)]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, _OWN_COUNT):
            yield node
            waiting += ast.iter_child_nodes(node)


def counted_functions(sources: Iterable[tuple[Path, Iterable[ast.AST]]]) -> list[CountedFunction]:
    """Return the functions of some files, the most complex first. The nodes of each file come with its path."""
    return sorted(
        (
            CountedFunction(complexity_of(node), f"{path}:{node.lineno} {node.name}")
            for path, nodes in sources
            for node in nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ),
        reverse=True,
    )


def _sources() -> Iterator[tuple[Path, Iterable[ast.AST]]]:
    """Yield the files of the product."""
    for file in (file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        yield file.relative_to(ROOT), ast.walk(ast.parse(file.read_text(encoding="utf-8")))


def share_over(functions: list[CountedFunction]) -> float:
    """Return how many of 1,000 functions have a complexity over 10."""
    return 1000 * sum(one.complexity > MOST for one in functions) / len(functions)


def main() -> int:
    """Print the functions over the limit and their share. Returns 1 if there are too many."""
    functions = counted_functions(_sources())
    for one in functions:
        if one.complexity > MOST:
            print(f"{one.complexity:>3}  {one.place}")
    share = share_over(functions)
    print(f"{len(functions):,} functions; {share:.1f} of 1,000 have more than {MOST} (at most {MOST_OF_A_THOUSAND})")
    return int(share > MOST_OF_A_THOUSAND)


if __name__ == "__main__":
    raise SystemExit(main())
