"""Participants without a model that others can be tried against: an echo, a calculator, a fulfiller.

Each is a behaviour added to a `Participant`. They know nothing of processes and of the command line.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from math import isfinite
from types import MappingProxyType
from typing import Final

from mew_protocol import kinds
from mew_protocol.envelope import Envelope

from mew_agent.participant.participant import Participant
from mew_agent.simple_agents.fulfiller import Fulfiller

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
    """Say again to everybody what is said. An echo's own words end there, so that two of them stop."""

    @me.on(kinds.CHAT)
    async def repeat(chat: Envelope) -> None:
        text = chat.body.get("text")
        if chat.sender == me.id or not chat.is_for(me.id) or not isinstance(text, str) or not text:
            return
        if not (text.startswith(ECHO) and chat.correlation_id):
            await me.chat(ECHO + text, correlation_id=(chat.id,))


def be_calculator(me: Participant) -> None:
    """Offer add, multiply and evaluate, also to requests that name nobody."""

    @me.tool
    def add(a: Number, b: Number) -> str:
        """Add two numbers."""
        return shown(a + b)

    @me.tool
    def multiply(a: Number, b: Number) -> str:
        """Multiply two numbers."""
        return shown(a * b)

    @me.tool
    def evaluate(expression: str) -> str:
        """Work out an arithmetic expression such as (2 + 3) * 4."""
        return shown(work_out(expression))

    @me.on(kinds.MCP_REQUEST)
    async def answer_everybody(request: Envelope) -> None:
        if request.sender != me.id and not request.addressees:
            await me.mcp_server.respond(request)


def be_fulfiller(me: Participant) -> None:
    """Fulfil every proposal that our own capabilities cover; reject the others. `Fulfiller` takes a policy, too."""
    Fulfiller(me)


BEHAVIOURS: Final[Mapping[str, Callable[[Participant], None]]] = MappingProxyType(
    {"echo": be_echo, "calculator": be_calculator, "fulfiller": be_fulfiller}
)


def work_out(expression: str) -> Number:
    """The value of an arithmetic expression. Raises `ValueError` for anything else, and for what grows too large."""
    if len(expression) > MAX_EXPRESSION_LENGTH:
        raise ValueError(f"an expression has at most {MAX_EXPRESSION_LENGTH} characters")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body, MAX_DEPTH)
    except (SyntaxError, MemoryError, RecursionError):
        raise ValueError(f"'{expression}' is no arithmetic expression") from None
    except ZeroDivisionError:
        raise ValueError("a division by zero") from None
    except OverflowError:
        raise ValueError("the result is too large") from None


def shown(value: Number) -> str:
    """A number as a person writes it: 6 / 2 is 3. Raises `ValueError` for one that is too long to write."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, float) and not isfinite(value):
        raise ValueError("the result is too large")
    if isinstance(value, int) and value.bit_length() > MAX_DIGITS * 3:
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
                raise ValueError("the result is no real number")
            return result
        case _:
            raise ValueError("only numbers and + - * / // % ** ( ) are understood")
