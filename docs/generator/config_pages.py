"""Renders configuration models as Markdown tables: key, type, default, description.

Owns the layout and how a type is written for people. A description comes from descriptions.yaml in this folder; where
it has none, from the string below the field in the model. A key without a description is an error, so no key is
forgotten.
"""

import ast
import inspect
import types
from collections.abc import Iterator, Mapping
from copy import copy
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from mew_settings.values import LateType
from mew_spaces.config.settings import SpaceConfig
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from mew_agent.config.agent_config import AgentConfig

HERE = Path(__file__).parent
ABSENT = "—"
AGENT_PREFIX = "agent"
SPACE_SKIPS = frozenset({"participants.ID.agent"})
"""Sections that have a page of their own."""

AGENT_SKIPS = frozenset({"agent.models"})


def space_page() -> str:
    """The page `reference/space-yaml.md`."""
    return _page("space.yaml", SpaceConfig, "", SPACE_SKIPS)


def agent_page() -> str:
    """The page `reference/agent-config.md`."""
    return _page("agent", AgentConfig, AGENT_PREFIX, AGENT_SKIPS)


def undescribed() -> list[str]:
    """Keys without a description, and descriptions without a key. Empty when the pages are complete."""
    known = _descriptions()
    pages = ((SpaceConfig, "", SPACE_SKIPS), (AgentConfig, AGENT_PREFIX, AGENT_SKIPS))
    fields = {path: field for page in pages for _, section in _sections(*page) for path, field in section}
    missing = [path for path, field in fields.items() if not _description(path, field, known)]
    return missing + sorted(known.keys() - fields.keys())


def _page(name: str, model: type[BaseModel], prefix: str, skips: frozenset[str]) -> str:
    parts = [(HERE / f"{name}.intro.md").read_text(encoding="utf-8").strip(), ""]
    known = _descriptions()
    for heading, fields in _sections(model, prefix, skips):
        parts += [f"## `{heading}`" if heading else "## Top level", ""]
        parts += ["| Key | Type | Default | Description |", "|---|---|---|---|"]
        for path, field in fields:
            text = _description(path, field, known)
            if not text:
                raise LookupError(f"{path} has no description: add one to the field or to {HERE}/descriptions.yaml")
            key = path.rpartition(".")[2]
            parts.append(f"| `{key}` | {_type_words(field.annotation, field)} | {_default(field)} | {_cell(text)} |")
        parts.append("")
    return "\n".join(parts)


def _sections(
    model: type[BaseModel], prefix: str, skips: frozenset[str]
) -> Iterator[tuple[str, list[tuple[str, FieldInfo]]]]:
    """Each mapping of the file with its keys, outer ones first; capability patterns once."""
    seen: set[str] = set()

    def walk(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, list[tuple[str, FieldInfo]]]]:
        if prefix in seen:
            return
        seen.add(prefix)
        docs = {name: text for cls in model.__mro__[::-1] for name, text in _attribute_docs(cls).items()}
        own = [
            (_join(prefix, name), _with_description(field, docs.get(name)))
            for name, field in model.model_fields.items()
        ]
        yield prefix, own
        for path, field in own:
            inner, part = _inner(field.annotation)
            if inner is not None and path not in skips:
                yield from walk(inner, "capability" if part == "[]" else path + part)

    return walk(model, prefix)


def _inner(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """The model that a key's value is made of, and how its path continues: `.ID` in a mapping, `[]` in a list."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    if origin is Annotated:
        return _inner(_found(inside))
    if origin in (Union, types.UnionType):
        return next((found for one in inside if (found := _inner(one))[0] is not None), (None, ""))
    if origin is dict:
        return _inner(inside[1])[0], ".ID"
    if origin in (tuple, list):
        return _inner(inside[0])[0], "[]"
    return None, ""


def _found(annotated: tuple[Any, ...]) -> Any:
    """The annotated type, or the one that is found at its first use."""
    return next((one.type for one in annotated if isinstance(one, LateType)), annotated[0])


def _type_words(annotation: Any, field: FieldInfo | None = None) -> str:
    words = _plain_type(annotation)
    bounds = [
        f"{sign} {getattr(one, name):g}"
        for one in (field.metadata if field else ())
        for name, sign in _SIGNS
        if isinstance(getattr(one, name, None), int | float)
    ]
    return f"{words}, {' and '.join(bounds)}" if bounds else words


_SIGNS = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
_NAMES = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    Path: "file",
    SecretStr: "text",
    Any: "any",
}


def _plain_type(annotation: Any) -> str:
    origin, inside = get_origin(annotation), get_args(annotation)
    if annotation in _NAMES:
        return _NAMES[annotation]
    if origin is Annotated:
        return _plain_type(_found(inside))
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in inside)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_plain_type(one) for one in inside if one is not type(None)))
    if origin is dict:
        return "mapping"
    if origin in (tuple, list):
        return f"list of {_plain_type(inside[0])}"
    if hasattr(annotation, "__value__"):
        return _plain_type(annotation.__value__)
    return "mapping"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True) if field.default is PydanticUndefined else field.default
    if value is None or isinstance(value, BaseModel) or value == () or value == {}:
        return ABSENT
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int | float):
        return f"`{value:g}`" if isinstance(value, float) else _whole(value)
    if isinstance(value, tuple) and all(isinstance(one, BaseModel) for one in value):
        return "`" + ", ".join(str(one.model_dump(exclude_unset=True)).replace("'", "") for one in value) + "`"
    return f"`{value}`"


def _whole(value: int) -> str:
    for unit, size in (("MiB", 1024**2), ("KiB", 1024)):
        if value >= 16 * 1024 and value % size == 0:
            return f"`{value}` ({value // size} {unit})"
    return f"`{value}`"


def _description(path: str, field: FieldInfo, known: Mapping[str, str]) -> str:
    return known.get(path) or field.description or ""


def _with_description(field: FieldInfo, text: str | None) -> FieldInfo:
    described = copy(field)
    described.description = text
    return described


def _attribute_docs(cls: type) -> Mapping[str, str]:
    """The strings below the fields of a model, by field."""
    if not issubclass(cls, BaseModel) or cls is BaseModel:
        return {}
    [definition] = (
        node
        for node in ast.walk(_module_tree(cls.__module__))
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__
    )
    return {
        ast.unparse(field.target): str(ast.literal_eval(text.value))
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


@cache
def _module_tree(name: str) -> ast.Module:
    # inspect.getsource(cls) finds no source on Python 3.13 for `ParticipantConfig`, which create_model made.
    return ast.parse(inspect.getsource(import_module(name)))


def _descriptions() -> dict[str, str]:
    found: dict[str, str] = yaml.safe_load((HERE / "descriptions.yaml").read_text(encoding="utf-8"))
    return found


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
