"""A game: lead the cat through a maze to the fish, with tools or by chat.

`mew up` runs it as a participant. Boards are text: `#` is a wall, `C` the start of the cat, `F` the fish. Add your own
to BOARDS.
"""

from mew_agent import ChatReceived, Participant, run

BOARDS = (
    """
    #########
    #C..#...#
    ###.#.#.#
    #...#.#.#
    #.###.#.#
    #.....#F#
    #########
    """,
    """
    ###########
    #...#.....#
    #.#.#.###.#
    #.#...#F#.#
    #.#####.#.#
    #C#.......#
    ###########
    """,
    """
    #############
    #F#.......#.#
    #.#.#####.#.#
    #...#...#...#
    ###.#.#.###.#
    #...#.#.....#
    #.###.#####.#
    #.....#C....#
    #############
    """,
)

STEPS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
PICTURES = {"#": "🧱", ".": "⬜", "F": "🐟"}
CAT = "🐈"


class Maze:
    """The game: the board, the position of the cat, and the number of its steps."""

    def __init__(self, boards: tuple[str, ...] = BOARDS) -> None:
        self._boards: list[list[list[str]]] = [[list(line) for line in board.split()] for board in boards]
        self.level = 0
        self.steps = 0
        self.cat: tuple[int, int] = (0, 0)
        self._begin(0)

    def look(self) -> str:
        """Show the board, the cat, and the possible moves."""
        return self._describe("The cat has eaten." if self.is_solved() else "The cat is hungry.")

    def move(self, direction: str) -> str:
        """Move the cat one step: up, down, left or right."""
        step = STEPS.get(direction.strip().lower())
        if step is None:
            raise ValueError(f"'{direction}' is not a direction; use {', '.join(STEPS)}")
        if self.is_solved():
            return self._describe("The cat has eaten and stays here.")
        row, column = self.cat[0] + step[0], self.cat[1] + step[1]
        if self._board[row][column] == "#":
            return self._describe(f"A wall: the cat cannot go {direction.strip().lower()}.")
        self.cat = (row, column)
        self.steps += 1
        return self._describe(
            "The cat eats the fish!" if self.is_solved() else f"The cat went {direction.strip().lower()}."
        )

    def next_board(self) -> str:
        """Continue with the next board, after the cat has eaten."""
        if not self.is_solved():
            return self._describe("Find the fish first.")
        self._begin((self.level + 1) % len(self._boards))
        return self._describe("A new board.")

    def restart(self) -> str:
        """Start this board again."""
        self._begin(self.level)
        return self._describe("Back to the start.")

    def is_solved(self) -> bool:
        """Return whether the cat has found the fish."""
        return self._board[self.cat[0]][self.cat[1]] == "F"

    def _begin(self, level: int) -> None:
        self.level = level
        self.steps = 0
        self._board = [list(line) for line in self._boards[level]]
        self.cat = next(
            (row, column) for row, line in enumerate(self._board) for column, cell in enumerate(line) if cell == "C"
        )
        self._board[self.cat[0]][self.cat[1]] = "."

    def _describe(self, event: str) -> str:
        rows = [
            "".join(CAT if (row, column) == self.cat else PICTURES[cell] for column, cell in enumerate(line))
            for row, line in enumerate(self._board)
        ]
        open_ways = [
            name for name, (down, right) in STEPS.items() if self._board[self.cat[0] + down][self.cat[1] + right] != "#"
        ]
        ways = "say `next` for another board" if self.is_solved() else f"open: {', '.join(open_ways)}"
        steps = f"{self.steps} step{'' if self.steps == 1 else 's'}"
        where = f"board {self.level + 1} of {len(self._boards)}, {steps}"
        return "\n".join([event, *rows, f"{where}; {ways}"])


def answer_to(maze: Maze, text: str) -> str:
    """Carry out a chat, and return the answer."""
    word = text.strip().lower()
    match word:
        case "look":
            return maze.look()
        case "next":
            return maze.next_board()
        case "restart":
            return maze.restart()
        case _ if word in STEPS:
            return maze.move(word)
        case _:
            return f"I understand: look, {', '.join(STEPS)}, next, restart."


async def main() -> None:
    """Play until the space ends."""
    maze = Maze()
    me = Participant.from_environment()
    for tool in (maze.look, maze.move, maze.next_board, maze.restart):
        me.tool(tool)

    @me.on_chat
    async def answer(chat: ChatReceived) -> None:
        if chat.is_to_me:
            await chat.reply(answer_to(maze, chat.text))

    await me.take_part()


if __name__ == "__main__":
    run(main)
