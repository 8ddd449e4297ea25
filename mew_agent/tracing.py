"""The ids of the current work for log lines, its trace context in envelopes, and a hook for spans.

Owns the header `traceparent` of W3C Trace Context, so that one question is one trace across agents. Without a recorder,
a request's trace context is only passed on with the resulting envelopes. Entries of the table `TRACERS` create
recorders. Never records texts of messages, arguments, results or errors.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, Protocol

from mew_protocol import kinds
from mew_protocol.envelope import Draft

if TYPE_CHECKING:  # a participant without a model loads nothing of models
    from mew_agent.model.interface import ModelReply

TRACEPARENT: Final = "traceparent"
"""The header of envelopes; other implementations pass it on, as any unknown header."""

CARRYING_KINDS: Final = frozenset({kinds.CHAT, kinds.MCP_REQUEST, kinds.MCP_PROPOSAL, kinds.PARTICIPANT_COMPACT})
"""Envelopes that begin work elsewhere."""

TRACERS: Final = "mew_agent.tracers"
"""The table of functions that make a recorder from environment variables, or return None if these ask for none."""

_HEADER: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

Work = Literal["turn", "model_call", "tool_call", "request", "approval", "http", "compaction"]


@dataclass(eq=False, slots=True)
class Outcome:
    """The attributes that a `with` block sets on its span; a recorder reads them at the end of the block."""

    facts: dict[str, object] = field(default_factory=dict)
    reply: "ModelReply | None" = None
    """The model's reply. Its model, finish reason and usage are recorded as its provider reported them."""
    failure: str | None = None
    """A short name of the error if the work failed."""


class Recorder(Protocol):
    """Records spans."""

    def span(
        self, work: Work, ids: Mapping[str, str], header: str | None, facts: Mapping[str, object]
    ) -> AbstractContextManager[Outcome]:
        """Make a span the current one while the block runs, and record the outcome at its end.

        `header` is the received trace context; None continues the current span.
        """

    def traceparent(self) -> str | None:
        """Return the trace context of the current span."""

    def log_ids(self) -> Mapping[str, str]:
        """Return the ids of the current span."""


_recorder: Recorder | None = None
_ids: ContextVar[Mapping[str, str]] = ContextVar("ids", default=MappingProxyType({}))
_received: ContextVar[str | None] = ContextVar("received", default=None)
"""The trace context of the present work, as it arrived."""


def record_with(recorder: Recorder | None) -> None:
    """Record spans from now on; None stops recording."""
    global _recorder
    _recorder = recorder


def enable_by_environment() -> None:
    """Record spans if variables such as `OTEL_EXPORTER_OTLP_ENDPOINT` are set, and a part supports it."""
    if any(name.startswith("OTEL_") for name in os.environ):
        from mew_settings.plugins import load_table

        for make in load_table(TRACERS).values():
            if (recorder := make(os.environ)) is not None:
                record_with(recorder)


def log_ids() -> dict[str, str]:
    """Return the ids of the current work for a log line, such as `envelope_id`, `call_id` and `trace_id`."""
    return {**_ids.get(), **({} if _recorder is None else _recorder.log_ids())}


@contextmanager
def span(work: Work, ids: Mapping[str, str | None], header: str | None = None, **facts: object) -> Iterator[Outcome]:
    """Set the ids of log lines and the trace context while the block runs; with a recorder, in a span.

    `header` is the received trace context. None continues the current one: the turn's for a model call, the
    compaction's for a summary.
    """
    known = {key: value for key, value in ids.items() if value is not None}
    reset_ids, reset_header = _ids.set({**_ids.get(), **known}), _received.set(header or _received.get())
    try:
        if _recorder is None:
            yield Outcome()
            return
        with _recorder.span(work, known, header, facts) as one:
            try:
                yield one
            except BaseException as error:
                one.failure = type(error).__name__
                raise
    finally:
        _ids.reset(reset_ids)
        _received.reset(reset_header)


def traceparent() -> str | None:
    """Return the trace context of the current work: of the current span, or without a recorder the received one."""
    return _received.get() if _recorder is None else _recorder.traceparent()


def header_of(source: Draft | str) -> str | None:
    """Return the trace context in an envelope or an HTTP header; None without a readable one."""
    header = source if isinstance(source, str) else (source.model_extra or {}).get(TRACEPARENT)
    return header if isinstance(header, str) and _HEADER.fullmatch(header) else None
