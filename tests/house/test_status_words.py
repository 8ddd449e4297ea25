"""Status words in the source: all are in the file of words, and one function joins them to their details."""

import ast
import re

from mew_protocol.status_word import WORDS

from tests.house.conftest import Module, walk


def test_every_status_word_in_the_source_is_in_the_file(modules: list[Module]) -> None:
    used = set()
    for module in modules:
        for node in walk(module.tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "status_word" and node.args:
                used |= {one.value for one in walk(node.args[0]) if isinstance(one, ast.Constant)}
    assert len(used) > 20
    assert {str(one) for one in used} - {"compaction_"} <= set(WORDS)


def test_no_module_joins_a_word_and_its_detail_itself(modules: list[Module]) -> None:
    joined = re.compile(rf"({'|'.join(WORDS)}): ?")
    found = [
        f"{module.path}:{node.lineno}"
        for module in modules
        for node in walk(module.tree)
        if isinstance(node, ast.JoinedStr)
        and isinstance(first := node.values[0], ast.Constant)
        and joined.fullmatch(str(first.value))
    ]
    assert found == []
