"""[pure] HTTP routes with their parameters, models and errors.

Each `Operation` is declared once, in `http`; the router and the OpenAPI document both come from it.
"""

from dataclasses import dataclass

from pydantic import BaseModel


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a query or a path. With `maximum` it is a whole number, else text."""

    name: str
    description: str
    minimum: int = 1
    maximum: int | None = None
    default: int | None = None

    def parse_number(self, text: str) -> int | None:
        """Return the number in a query string, None if invalid."""
        if self.maximum is None or not (text.isascii() and text.isdigit() and len(text) <= len(str(self.maximum))):
            return None
        number = int(text)
        return number if self.minimum <= number <= self.maximum else None


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path.

    `parameters` are query parameters. `answer` and `body` are models; None for an open schema. `errors` are HTTP status
    codes in addition to those for token, body and parameters. `is_for_owner`: the token must be that of the participant
    in the path.
    """

    method: str
    path: str
    answer: type[BaseModel] | None = None
    media_type: str = "application/json"
    parameters: tuple[Parameter, ...] = ()
    body: type[BaseModel] | None = None
    errors: tuple[int, ...] = ()
    needs_token: bool = True
    is_for_owner: bool = False
