"""Reads a YAML text into a value, with the line and column of each part and of each mistake.

Refuses duplicate keys, and anchors that contain themselves. Does not know the keys.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from mew_settings.yaml_mistakes import explained


class YamlProblem(ValueError):
    """An invalid YAML text. `line` and `column` count from 1, or are None if unknown."""

    def __init__(self, problem: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(problem)
        self.problem, self.line, self.column = problem, line, column


class YamlText:
    """A parsed text: its `value`, its `root` node (None if it is empty), and the places of both."""

    def __init__(self, text: str) -> None:
        """Raises `YamlProblem`."""
        try:
            loader = yaml.SafeLoader(text)
            self.root: yaml.Node | None = loader.get_single_node()
            if self.root is not None:
                _check(self.root, set(), ())
            self.value: Any = {} if self.root is None else loader.construct_document(self.root)
        except yaml.MarkedYAMLError as error:
            details = " ".join(part for part in (error.context, error.problem) if part) or "cannot be parsed"
            mark = error.problem_mark or error.context_mark
            mistake = explained(text, details, mark.line, mark.column) if mark is not None else None
            if mistake is not None:
                raise YamlProblem(mistake.problem, mistake.line + 1, mistake.column + 1) from None
            raise _problem_at(mark, f"invalid YAML: {details}") from None
        except yaml.reader.ReaderError as error:
            before = text[: error.position]
            position = before.count("\n") + 1, len(before) - before.rfind("\n")
            raise YamlProblem(f"invalid YAML: {error.reason}: {chr(error.character)!r}", *position) from None
        except YamlProblem:
            raise
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise YamlProblem(f"invalid YAML: {error}") from None

    def mark_at(self, place: Sequence[int | str], *, at_key: bool = False) -> yaml.Mark | None:
        """Return the position of a value (keys and indexes), or of the nearest value above it.

        `at_key`: the position of its key. None for an empty text.
        """
        node = self.root
        mark = node.start_mark if node is not None else None
        for depth, step in enumerate(place):
            last = depth == len(place) - 1
            if isinstance(node, yaml.MappingNode):
                pair = pair_of(node, str(step))
                if pair is None:
                    return mark
                node = pair[1]
                mark = pair[0].start_mark if (last and at_key) else node.start_mark
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                mark = node.start_mark
            else:
                return mark
        return mark

    def key_marks(self) -> Iterator[tuple[tuple[str, ...], yaml.Mark]]:
        """Yield every key in nested mappings, with its path and position."""
        return _keys_under(self.root, ())


def pair_of(node: yaml.Node | None, key: str) -> tuple[yaml.Node, Any] | None:
    """Return the node of a key of a mapping, and that of its value; None if there is none."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((pair for pair in pairs if pair[0].value == key), None)


def _keys_under(node: yaml.Node | None, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], yaml.Mark]]:
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        place = (*above, str(key.value))
        yield place, key.start_mark
        yield from _keys_under(value, place)


def _check(node: yaml.Node, seen: set[int], above: tuple[int, ...]) -> None:
    """Refuse a duplicate key, of which YAML would silently keep the last, and a node that contains itself."""
    if id(node) in above:
        raise _problem_at(node.start_mark, "an anchor contains itself; write the value out")
    if id(node) in seen:
        return
    seen.add(id(node))
    within = (*above, id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check(item, seen, within)
    elif isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in keys and key.value != "<<":
                raise _problem_at(key.start_mark, f"duplicate key '{key.value}'; remove one of the two")
            keys.add(key.value if isinstance(key, yaml.ScalarNode) else "")
            _check(value, seen, within)


def _problem_at(mark: yaml.Mark | None, problem: str) -> YamlProblem:
    return YamlProblem(problem) if mark is None else YamlProblem(problem, mark.line + 1, mark.column + 1)
