"""The HTTP library of the installed openai package: `httpx` with version 2, `httpx2` with version 3."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx2 as transport
else:
    transport = import_module("httpx" if version("openai").startswith("2.") else "httpx2")

__all__ = ["transport"]
