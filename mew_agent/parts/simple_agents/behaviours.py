"""Participants without a model, for testing others: an echo, a calculator, a fulfiller.

Each is a behaviour added to a `Participant`. Does not know processes or the command line.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from math import isfinite
from types import MappingProxyType
from typing import Final

from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.json_values import text_at

from mew_agent.participant.participant import Participant
from mew_agent.parts.simple_agents.fulfiller import Fulfiller

ECHO: Final = "Echo: "
MAX_EXPRESSION_LENGTH: Final = 500
MAX_DEPTH: Final = 50
MAX_EXPONENT: Final = 256
MAX_DIGITS: Final = 4000

Number = int | float

_OPERATORS: Final[Mapping[type[ast.operator | ast.unaryop], Callable[..., Number]]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
        ast.Pow: operator.pow,
        ast.UAdd: operator.pos,
        ast.USub: operator.neg,
    }
)


def be_echo(me: Participant) -> None:
    """Repeat every chat to everyone. Does not repeat another echo's answers, so that two echoes stop."""

    @me.on(kinds.CHAT)
    async def repeat(chat: Envelope) -> None:
        text = text_at(chat.body, "text")
        if chat.sender == me.id or not chat.is_for(me.id) or not text:
            return
        if not (text.startswith(ECHO) and chat.correlation_id):
            await me.chat(ECHO + text, correlation_id=(chat.id,))


def be_calculator(me: Participant) -> None:
    """Offer `add`, `multiply` and `evaluate`; also answers requests without an addressee."""

    @me.tool
    def add(a: Number, b: Number) -> str:
        """Add two numbers."""
        return number_text(a + b)

    @me.tool
    def multiply(a: Number, b: Number) -> str:
        """Multiply two numbers."""
        return number_text(a * b)

    @me.tool
    def evaluate(expression: str) -> str:
        """Evaluate an arithmetic expression such as (2 + 3) * 4."""
        return number_text(evaluate_arithmetic(expression))

    @me.on(kinds.MCP_REQUEST)
    async def answer_unaddressed(request: Envelope) -> None:
        if request.sender != me.id and not request.addressees:
            await me.mcp_server.respond(request)


BEHAVIOURS: Final[Mapping[str, Callable[[Participant], object]]] = MappingProxyType(
    {"echo": be_echo, "calculator": be_calculator, "fulfiller": Fulfiller}
)


def evaluate_arithmetic(expression: str) -> Number:
    """Return the value of an arithmetic expression. Raises `ValueError` for other text and too large values."""
    if len(expression) > MAX_EXPRESSION_LENGTH:
        raise ValueError(f"the expression is longer than {MAX_EXPRESSION_LENGTH} characters")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body, MAX_DEPTH)
    except (SyntaxError, MemoryError, RecursionError):
        raise ValueError(f"'{expression}' is not an arithmetic expression") from None
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except OverflowError:
        raise ValueError("the result is too large") from None


def number_text(value: Number) -> str:
    """Return a number as text; 6 / 2 is `3`. Raises `ValueError` if the text would be too long."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if not isfinite(value) if isinstance(value, float) else value.bit_length() > MAX_DIGITS * 3:
        raise ValueError("the result is too large")
    return str(value)


def _value(node: ast.expr, depth: int) -> Number:
    if depth == 0:
        raise ValueError("the expression is nested too deeply")
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand, depth - 1))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            first, second = _value(left, depth - 1), _value(right, depth - 1)
            if isinstance(op, ast.Pow) and (abs(second) > MAX_EXPONENT or abs(first) > 10**6 or first < 0 > second):
                raise ValueError("the power is too large")
            result = _OPERATORS[type(op)](first, second)
            if isinstance(result, complex):
                raise ValueError("the result is not a real number")
            return result
        case _:
            raise ValueError("only numbers and + - * / // % ** ( ) are supported")
