"""The maze: its boards can be won, walls stop the cat, and it answers in words and pictures."""

from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def game(load: Callable[[str, str], ModuleType]) -> ModuleType:
    return load("cat-maze", "agents/maze.py")


def way_to_the_fish(maze: Any, steps: dict[str, tuple[int, int]]) -> list[str]:
    """The shortest way, by looking at the board from above."""
    waiting: deque[tuple[tuple[int, int], list[str]]] = deque([(maze.cat, [])])
    seen = {maze.cat}
    while waiting:
        (row, column), way = waiting.popleft()
        if maze._board[row][column] == "F":
            return way
        for name, (down, right) in steps.items():
            place = (row + down, column + right)
            if maze._board[place[0]][place[1]] != "#" and place not in seen:
                seen.add(place)
                waiting.append((place, [*way, name]))
    raise AssertionError("no way leads to the fish")


def test_every_board_can_be_won(game: ModuleType) -> None:
    maze = game.Maze()
    for level in range(len(game.BOARDS)):
        assert maze.level == level
        way = way_to_the_fish(maze, game.STEPS)
        assert len(way) > 5
        reported = [maze.move(direction) for direction in way]
        assert reported[-1].startswith("The cat eats the fish!")
        assert maze.steps == len(way)
        assert maze.next_board().startswith("A new board.")
    assert maze.level == 0


def test_boards_are_closed_by_walls(game: ModuleType) -> None:
    for board in game.Maze()._boards:
        assert {len(line) for line in board} == {len(board[0])}
        edge = [*board[0], *board[-1], *(line[0] for line in board), *(line[-1] for line in board)]
        assert set(edge) == {"#"}


def test_wall_stops_the_cat_and_open_ways_are_listed(game: ModuleType) -> None:
    maze = game.Maze()
    before = maze.cat
    reported = maze.move("up")
    assert reported.startswith("A wall")
    assert maze.cat == before
    assert reported.endswith("0 steps; open: right")


def test_next_board_requires_the_fish(game: ModuleType) -> None:
    assert game.Maze().next_board().startswith("Find the fish first.")


def test_chat_and_tools_do_the_same(game: ModuleType) -> None:
    said, called = game.Maze(), game.Maze()
    assert game.answer_to(said, " Right ") == called.move("right")
    assert game.answer_to(said, "look") == called.look()
    assert game.answer_to(said, "restart") == called.restart()
    assert "I understand" in game.answer_to(said, "jump")


def test_unknown_direction_lists_the_known_ones(game: ModuleType) -> None:
    with pytest.raises(ValueError, match="up, down, left, right"):
        game.Maze().move("north")
