"""[pure] The types of values in settings files, and the base of the models that declare their keys."""

from collections.abc import Callable
from functools import cached_property
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    TypeAdapter,
    ValidationInfo,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema


def _refuse_boolean(value: object) -> object:
    """Refuse `true`, which pydantic would read as 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def bare_off_as_text(value: object) -> object:
    """Return `off` for false: YAML reads a bare `off` as false."""
    return "off" if value is False else value


def _as_text(value: object) -> object:
    """Return a number or a boolean as text: YAML reads `PORT: 8080` as a number, and programs need text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def text_as(key: str) -> Any:
    """Return a model validator that reads a plain text as a mapping with this key."""

    def read(value: object) -> object:
        return {key: value} if isinstance(value, str) else value

    return model_validator(mode="before")(read)


class SettingsModel(BaseModel):
    """Keys of a settings file; an unknown key is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, protected_namespaces=())


class SparseSettings(SettingsModel):
    """A mapping of settings. A key without a value counts as missing."""

    @model_validator(mode="before")
    @classmethod
    def _without_empty_keys(cls, given: object) -> object:
        return {key: value for key, value in given.items() if value is not None} if isinstance(given, dict) else given


class LateType:
    """Annotates a field with the type that `find` returns at the first use.

    The type may be from a table of plug-ins: their modules may themselves import the settings that use the table.
    """

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find

    @cached_property
    def type(self) -> Any:
        """The found type."""
        return self._find()

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.type)

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: object, info: ValidationInfo) -> Any:
            return self._adapter.validate_python(value, context=info.context)

        return core_schema.with_info_plain_validator_function(read)


Text = Annotated[str, BeforeValidator(_as_text)]
Count = Annotated[int, BeforeValidator(_refuse_boolean)]
Positive = Annotated[Count, Field(gt=0)]
Seconds = Annotated[float, BeforeValidator(_refuse_boolean), Field(gt=0, allow_inf_nan=False)]
Price = Annotated[float, BeforeValidator(_refuse_boolean), Field(ge=0, allow_inf_nan=False)]
Number = Annotated[float, BeforeValidator(_refuse_boolean)]
