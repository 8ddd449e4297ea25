"""Warnings about capabilities, for commands and for the start of a space. Imports no client of the gateway."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mew_protocol import kinds
from mew_protocol.capability import unknown_kinds
from mew_protocol.setting_problems import did_you_mean


def unknown_kind_warnings(patterns: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A warning for each kind in these patterns that the protocol does not have."""
    for pattern in patterns:
        for kind in unknown_kinds(pattern):
            hint = did_you_mean(kind, kinds.KNOWN)
            yield f"the protocol has no kind '{kind}'{hint}; only programs that send this kind themselves can use it"
