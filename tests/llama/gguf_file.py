"""[pure] Writing a GGUF file: header, metadata, tensors of 32-bit floats. Knows no model.

The layout is version 3 of the format: magic, version, counts, key-value pairs, tensor descriptions, then the tensors,
each at a multiple of 32 bytes. All numbers are little-endian.
"""

import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

Value: TypeAlias = "bool | int | float | str | Sequence[str] | Sequence[int]"

_ALIGNMENT: Final = 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_TENSOR_FLOAT32: Final = 0


@dataclass(frozen=True, slots=True)
class Tensor:
    """`shape` has the length of a row first. `values` are the rows one after another."""

    name: str
    shape: tuple[int, ...]
    values: "array[float]"


def encoded(metadata: Mapping[str, Value], tensors: Sequence[Tensor]) -> bytes:
    """The bytes of a file. A whole number is stored as unsigned 32 bit, a list of them as signed."""
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        out += _string(key) + _typed(value)
    at = 0
    for tensor in tensors:
        out += _string(tensor.name) + struct.pack("<I", len(tensor.shape))
        out += struct.pack(f"<{len(tensor.shape)}QIQ", *tensor.shape, _TENSOR_FLOAT32, at)
        at += _padded(len(tensor.values) * 4)
    out += bytes(_padded(len(out)) - len(out))
    for tensor in tensors:
        values = tensor.values
        if sys.byteorder == "big":
            values = values[:]
            values.byteswap()
        raw = values.tobytes()
        out += raw + bytes(_padded(len(raw)) - len(raw))
    return bytes(out)


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _typed(value: Value) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int():
            return struct.pack("<II", _UINT32, value)
        case float():
            return struct.pack("<If", _FLOAT32, value)
        case str():
            return struct.pack("<I", _STRING) + _string(value)
        case _:
            kind = _STRING if isinstance(value[0], str) else _INT32
            items = b"".join(_string(item) if isinstance(item, str) else struct.pack("<i", item) for item in value)
            return struct.pack("<IIQ", _ARRAY, kind, len(value)) + items
