"""Python functions as tools: a schema from their annotations, checked arguments, and calls in a task or a thread.

`sources` offers a toolbox to the model, `catalog` to peers.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from functools import partial
from typing import Any, Final, NamedTuple, is_typeddict

import anyio.lowlevel
import anyio.to_thread
from mew_settings.setting_problems import first_problem
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue

from mew_agent.errors import MewAgentError
from mew_agent.tools.results import ToolResult

ToolFunction = Callable[..., Any]

NO_HINTS: Final[Mapping[str, Any]] = {}


@dataclass(eq=False)
class UnknownTool(MewAgentError):
    """No tool has this name."""

    name: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return f"no tool '{self.name}' (known: {', '.join(self.known) or 'none'})"


@dataclass(eq=False)
class BadArguments(MewAgentError):
    """Arguments that do not match the schema of the tool. `problem` names the argument."""

    name: str
    problem: str

    def __str__(self) -> str:
        return f"bad arguments for '{self.name}': {self.problem}"


class ToolCallFailed(MewAgentError):
    """A tool could not carry out a call, or ended without a result; the text has the reason."""


class _Untitled(GenerateJsonSchema):
    """Omits schema titles that only repeat a name, because every prompt would contain them."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def generate(self, schema: Any, mode: JsonSchemaMode = "validation") -> JsonSchemaValue:
        generated = super().generate(schema, mode)
        generated.pop("title", None)
        return generated


def _field_of(parameter: inspect.Parameter, tool_name: str) -> tuple[Any, Any]:
    """Return the type and the field of an argument."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise TypeError(f"tool '{tool_name}': every argument needs a name; '{parameter}' has none")
    default = ... if parameter.default is parameter.empty else parameter.default
    # The alias allows argument names that pydantic reserves for its own attributes.
    kind = Any if parameter.annotation is parameter.empty else parameter.annotation
    return kind, Field(default, alias=parameter.name)


class Tool(NamedTuple):
    """A function with a pydantic model of its arguments."""

    name: str
    description: str
    function: ToolFunction
    arguments: type[BaseModel]
    schema: dict[str, Any]
    """JSON Schema of the arguments."""
    title: str | None = None
    annotations: Mapping[str, Any] = NO_HINTS
    """Hints of MCP for callers, such as `readOnlyHint` and `destructiveHint`."""
    output_schema: dict[str, Any] | None = None
    """JSON Schema of the structured result, if the function declares that it returns an object."""

    @classmethod
    def from_function(
        cls,
        function: ToolFunction,
        *,
        name: str | None = None,
        description: str | None = None,
        title: str | None = None,
        annotations: Mapping[str, Any] | None = None,
    ) -> "Tool":
        """Make a tool from a typed function; its docstring is the description that a model reads.

        A return type that is a pydantic model, a dataclass or a `TypedDict` becomes the output schema. Raises
        `TypeError` for a lambda without `name`, and for arguments without a name or a JSON Schema.
        """
        plain = function
        while isinstance(plain, partial):
            plain = plain.func
        tool_name = name or str(getattr(plain, "__name__", type(plain).__name__))
        if tool_name == "<lambda>":
            raise TypeError("tool '<lambda>': a lambda needs a name, as in tool(name=...)")
        # `eval_str` resolves the text in place of types after `from __future__ import annotations`.
        signature = inspect.signature(function, eval_str=True)
        fields = [_field_of(parameter, tool_name) for parameter in signature.parameters.values()]
        try:
            named: dict[str, Any] = {f"argument_{index}": field for index, field in enumerate(fields)}
            arguments = create_model(f"{tool_name}_arguments", **named)
            schema = arguments.model_json_schema(schema_generator=_Untitled)
        except PydanticUserError as error:
            raise TypeError(f"tool '{tool_name}': {error.message.partition('. ')[0]}") from None
        text = description or inspect.getdoc(plain) or f"The tool {tool_name}."
        returned = _output_schema(signature.return_annotation)
        return cls(tool_name, text, function, arguments, schema, title, dict(annotations or {}), returned)

    def listed(self) -> dict[str, Any]:
        """Return the tool's entry in an MCP `tools/list`."""
        more = {"title": self.title, "annotations": self.annotations, "outputSchema": self.output_schema}
        entry = {"name": self.name, "description": self.description, "inputSchema": self.schema}
        return {**entry, **{key: value for key, value in more.items() if value}}

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Check the arguments and run the function. Raises `BadArguments`, and the errors of `run_function`."""
        try:
            checked = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            raise BadArguments(self.name, first_problem(error)) from None
        keywords = {str(field.alias): getattr(checked, name) for name, field in type(checked).model_fields.items()}
        return await run_function(self.function, keywords)


def _output_schema(returned: Any) -> dict[str, Any] | None:
    """Return the schema of a declared result that is an object with named fields; else None."""
    is_model = inspect.isclass(returned) and issubclass(returned, BaseModel)
    if not (is_model or is_dataclass(returned) or is_typeddict(returned)):
        return None
    try:
        schema = TypeAdapter(returned).json_schema(mode="serialization", schema_generator=_Untitled)
    except PydanticUserError:
        return None  # a schema is optional for a result
    return schema if schema.get("type") == "object" else None  # MCP allows no reference there


class Watched:
    """A collection that calls `on_change` after each change; `version` counts the changes."""

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.version = 0

    def _changed(self) -> None:
        self.version += 1
        self.on_change()


class Toolbox(Watched):
    """Tools by name. `on_change` is called after each change."""

    def __init__(self) -> None:
        super().__init__()
        self.tools: dict[str, Tool] = {}

    def add(self, tool: Tool) -> None:
        """Add a tool; the name must be free."""
        if tool.name in self.tools:
            raise ValueError(f"tool '{tool.name}' already exists")
        self.tools[tool.name] = tool
        self._changed()

    def remove(self, name: str) -> Tool:
        """Withdraw a tool and return it. Running calls continue. Raises `UnknownTool`."""
        if name not in self.tools:
            raise UnknownTool(name, tuple(self.tools))
        tool = self.tools.pop(name)
        self._changed()
        return tool

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Run one tool. Raises `UnknownTool`, `BadArguments`, or the tool's error."""
        tool = self.tools.get(name)
        if tool is None:
            raise UnknownTool(name, tuple(self.tools))
        return await tool.call(arguments)

    async def run(self, name: str, arguments_json: str) -> ToolResult:
        """Run one tool for a model. Never raises: the result of a failed call contains the error."""
        try:
            return ToolResult.from_value(await self.call(name, read_arguments(name, arguments_json)))
        except Exception as error:
            return ToolResult.from_error(error)


async def run_function(function: ToolFunction, keywords: Mapping[str, Any]) -> Any:
    """Run a function of any kind; a plain one runs in a worker thread. A generator returns the list of its values."""

    def run() -> Any:
        result = function(**keywords)
        # Read in this thread: the generator may block between its values.
        return list(result) if inspect.isgenerator(result) else result

    try:
        is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        # A cancellation does not wait for a plain function; its later result is not needed.
        result = run() if is_async else await anyio.to_thread.run_sync(run, abandon_on_cancel=True)
        if inspect.isasyncgen(result):
            return [one async for one in result]
        return await result if inspect.isawaitable(result) else result
    # A tool that calls `exit` must not end the agent's process.
    except SystemExit as error:
        raise ToolCallFailed(f"the tool ended without a result: it called exit({error.code!r})") from error
    except anyio.get_cancelled_exc_class():
        await anyio.lowlevel.checkpoint_if_cancelled()  # raises if our own task is cancelled
        raise ToolCallFailed("the tool ended without a result: a task it waited for was cancelled") from None


def read_arguments(name: str, arguments_json: str) -> dict[str, Any]:
    """Parse a model's arguments for a tool. Empty text means no arguments. Raises `BadArguments`."""
    try:
        arguments = json.loads(arguments_json or "{}")
    except (ValueError, RecursionError) as error:  # a number may have too many digits
        raise BadArguments(name, f"invalid JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise BadArguments(name, "arguments must be a JSON object")
    return arguments
