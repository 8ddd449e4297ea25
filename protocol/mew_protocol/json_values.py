"""[pure] Read decoded JSON whose shape is not known. A part that is missing or of another type reads as empty."""

from collections.abc import Mapping
from typing import Any


def as_list(value: object) -> object:
    """Return a text as the only entry of a list, and any other value as it is."""
    return (value,) if isinstance(value, str) else value


def value_at(value: object, *keys: str) -> Any:
    """Return what a path of keys leads to, or the value itself without keys; None if the path leads nowhere."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def object_at(value: object, *keys: str) -> Mapping[str, Any]:
    """Return the object at a path of keys; empty if there is none."""
    found = value_at(value, *keys)
    return found if isinstance(found, Mapping) else {}


def objects_at(value: object, *keys: str) -> list[Mapping[str, Any]]:
    """Return the objects in the list at a path of keys, without its other entries; empty if there is no list."""
    found = value_at(value, *keys)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list | tuple) else []
