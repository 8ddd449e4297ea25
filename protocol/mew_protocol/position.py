"""[pure] A place in a space's sequence of accepted envelopes, as gateway and clients name it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Position:
    """A number within an epoch. Numbers of one epoch say nothing about another."""

    epoch: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.sequence}"

    @staticmethod
    def parse(text: str) -> "Position | None":
        """Read `<epoch>-<sequence>`; None if the text has another form."""
        epoch, dash, sequence = text.strip().rpartition("-")
        if not dash or not epoch or not sequence.isascii() or not sequence.isdigit() or len(sequence) > 18:
            return None
        return Position(epoch, int(sequence))
