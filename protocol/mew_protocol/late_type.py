"""[pure] A type of settings that is found at its first use, such as one from a table of plug-ins.

A module of such a plug-in may itself import the settings that use the table.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

from pydantic import GetCoreSchemaHandler, TypeAdapter, ValidationInfo
from pydantic_core import CoreSchema, core_schema


class LateType:
    """Annotates a field: its values are those of the type that `find` returns."""

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find

    @cached_property
    def type(self) -> Any:
        """The type that was found."""
        return self._find()

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.type)

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: object, info: ValidationInfo) -> Any:
            return self._adapter.validate_python(value, context=info.context)

        return core_schema.with_info_plain_validator_function(read)
