"""[pure] The forms of participant ids, space ids, and positions in a space. Creates no ids."""

import re
from typing import NamedTuple, NewType
from unicodedata import category

ParticipantId = NewType("ParticipantId", str)
SpaceId = NewType("SpaceId", str)

GATEWAY = ParticipantId("system:gateway")
"""Sender of everything that the gateway itself sends, except about streams."""

STREAM_GATEWAY = ParticipantId("gateway")
"""Sender of stream messages of the gateway, and the addressee of stream/request: an older name on the wire."""

GATEWAY_IDS = frozenset({GATEWAY, STREAM_GATEWAY})

MAX_ID_LENGTH = 128
MAX_ID_BYTES = 200
"""Ids in UTF-8: file systems allow 255 bytes for the name of a file, and the files of a participant add to its id."""

_TYPED_ID = re.compile(r"\w[\w.-]*")
_FORBIDDEN_IN_ID = re.compile(r"[/\\]|\.\.")
_BETWEEN_MESSAGES = re.compile(r"[,:;>] | to ")
"""The separators of displays between sender, addressees and text: `ada to bob: hello`."""
_INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories of invisible characters: with a zero-width space, a guest could look like another participant."""


def id_problem(text: str) -> str | None:
    """Return the problem with a participant or space id, or None.

    Ids become file names (`.mew/tokens/<id>.token`) and parts of URLs, so separators, `..` and invisible characters are
    refused. Names under `system:` belong to the gateway.
    """
    if not text.strip():
        return "an id must not be empty"
    if len(text) > MAX_ID_LENGTH:
        return f"an id may have at most {MAX_ID_LENGTH} characters; this one has {len(text)}"
    is_visible = text == text.strip() and not any(category(one) in _INVISIBLE for one in text)
    if _FORBIDDEN_IN_ID.search(text) or not is_visible:
        return (
            "invalid characters: an id must not contain '/', '\\', '..', invisible characters, or spaces at either end"
        )
    if (size := len(text.encode())) > MAX_ID_BYTES:
        return f"an id may have at most {MAX_ID_BYTES} bytes in UTF-8; this one has {size}"
    if text == STREAM_GATEWAY or text.startswith("system:"):
        return f"'{text}' is reserved for the gateway"
    return None


def checked_id(text: str) -> str:
    """Return a participant or space id, for models. Raises `ValueError` that names its problem."""
    if problem := id_problem(text):
        raise ValueError(problem)
    return text


def invited_id_problem(text: str) -> str | None:
    """Return the problem with an id that a participant chooses for a new participant, or None.

    Stricter than `id_problem`: the id must not look like a sender followed by text.
    """
    problem = id_problem(text)
    if problem is None and _BETWEEN_MESSAGES.search(text):
        problem = "an id must not contain ', ', ': ', '; ', '> ' or ' to ', which separate names and texts"
    return problem


def typed_id_problem(text: str) -> str | None:
    """Return the problem with an id that a person chooses for a new participant, or None.

    Stricter than `id_problem`, because people type these ids in commands and in messages.
    """
    problem = id_problem(text)
    if problem is None and _TYPED_ID.fullmatch(text) is None:
        problem = f"'{text}' is not a valid id; use letters, digits, '.', '_' and '-', and no '.' or '-' at the start"
    return problem


class Position(NamedTuple):
    """A number within an epoch. Numbers of different epochs are not comparable."""

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
