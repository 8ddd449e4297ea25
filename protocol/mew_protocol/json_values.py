"""[pure] Reads decoded JSON of unknown shape, and writes canonical JSON.

Missing parts, and parts of another type, read as empty.
"""

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

_LARGE: Final = 1e21
_SMALL: Final = 1e-6
"""Between these, JavaScript writes numbers without an exponent."""


def as_list(value: object) -> object:
    """Return a text as the only entry of a list, and any other value as it is."""
    return (value,) if isinstance(value, str) else value


def value_at(value: object, *keys: str) -> Any:
    """Return the value at a path of keys (without keys: the value itself); None if there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def object_at(value: object, *keys: str) -> Mapping[str, Any]:
    """Return the object at a path of keys; empty if there is none."""
    found = value_at(value, *keys)
    return found if isinstance(found, Mapping) else {}


def objects_at(value: object, *keys: str) -> list[Mapping[str, Any]]:
    """Return the objects in the list at a path of keys, ignoring other entries; empty without a list."""
    found = value_at(value, *keys)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list | tuple) else []


def text_at(value: object, *keys: str) -> str:
    """Return the text at a path of keys, (without keys: the value itself); empty if it is no text."""
    found = value_at(value, *keys)
    return found if isinstance(found, str) else ""


def texts_in(value: object) -> Iterator[str]:
    """Yield every text in a JSON value, however deep it is."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def well_formed(text: str) -> str:
    """Replace lone surrogates with question marks, because UTF-8 cannot encode them."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def canonical_json(value: object) -> bytes:
    """Return JSON in the form of RFC 8785: sorted keys, no blanks, numbers in JavaScript's form.

    Integers keep all digits, even those beyond JavaScript's precision. Lone surrogates are kept.
    """
    return _canonical(value).encode(errors="surrogatepass")


def _canonical(value: object) -> str:
    if isinstance(value, Mapping):
        entries = sorted(((str(key), one) for key, one in value.items()), key=lambda entry: _utf16(entry[0]))
        return "{" + ",".join(f"{_text(key)}:{_canonical(one)}" for key, one in entries) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_canonical, value)) + "]"
    if isinstance(value, float):
        return _number(value)
    return _text(value)


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be", errors="surrogatepass")


def _number(value: float) -> str:
    if value.is_integer() and abs(value) < _LARGE:
        return str(int(value))
    if _SMALL <= abs(value) < _LARGE:
        return format(Decimal(repr(value)), "f")
    mantissa, exponent, power = repr(value).partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(power):+d}" if exponent else mantissa
