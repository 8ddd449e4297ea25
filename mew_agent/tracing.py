"""Spans of turns, model calls, tool calls and compactions, by OpenTelemetry's conventions for generative AI.

Owns the names and attributes of spans, and the trace context in envelopes: the header `traceparent` of W3C Trace
Context, so that one question is one trace across agents. Owns also the ids of this work that log lines carry, with and
without tracing. The only module that imports `opentelemetry`. Until `enable` is called, nothing is imported, and the
trace context of a request is only passed on with the envelopes that it causes. Texts of messages, arguments and results
are never recorded, nor are messages of errors.

Source: https://github.com/open-telemetry/semantic-conventions-genai (spans `invoke_agent`, `chat`, `execute_tool`;
`tools/call` of MCP), and `POST` of HTTP. Compactions and approvals have no convention yet; their attributes begin with
`mew.`.
"""

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from mew_protocol import kinds
from mew_protocol.envelope import Draft

from mew_agent.errors import MissingExtra
from mew_agent.model.interface import ModelIdentity, ModelReply, ModelRequest, ToolCall

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider

logger = logging.getLogger("mew_agent.tracing")

TRACEPARENT: Final = "traceparent"
"""The header of envelopes; other implementations pass it on, as any unknown header."""

CARRYING_KINDS: Final = frozenset({kinds.CHAT, kinds.MCP_REQUEST, kinds.MCP_PROPOSAL, kinds.PARTICIPANT_COMPACT})
"""Envelopes that begin work elsewhere."""

_ENDPOINT_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROVIDER: Final = "openai"
"""`gen_ai.provider.name` names the API that is spoken, not whose model it is."""

_HEADER: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

_tracer: "Tracer | None" = None


def enable(provider: "TracerProvider | None" = None) -> None:
    """Record spans from now on, with this provider (default: the global one). Raises `MissingExtra`."""
    global _tracer
    try:
        from opentelemetry import trace
    except ImportError:
        raise MissingExtra("tracing", "'opentelemetry-sdk'", "pip install 'mew-agent[otel]'") from None
    _tracer = trace.get_tracer("mew_agent", tracer_provider=provider)


def disable() -> None:
    """Record no more spans."""
    global _tracer
    _tracer = None


def enable_by_environment(environ: Mapping[str, str] | None = None) -> None:
    """Export spans if OpenTelemetry's variables ask for it: `OTEL_EXPORTER_OTLP_ENDPOINT`, or `OTEL_TRACES_EXPORTER`.

    `service.name` is `mew-agent`, unless `OTEL_SERVICE_NAME` names another. Warns if the extra is missing.
    """
    environ = os.environ if environ is None else environ
    exporter = environ.get("OTEL_TRACES_EXPORTER", "")
    is_wanted = exporter in ("otlp", "console") or (
        not exporter and any(environ.get(one) for one in _ENDPOINT_VARIABLES)
    )
    if not is_wanted or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return
    try:
        enable(_exporting_provider(is_console=exporter == "console"))
    except (ImportError, MissingExtra):
        logger.warning("traces are not exported: install the extra with pip install 'mew-agent[otel]'")


def _exporting_provider(*, is_console: bool) -> "TracerProvider":
    import sys

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

    exporter: SpanExporter
    if is_console:
        exporter = ConsoleSpanExporter(out=sys.stderr)
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter()
    name = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "mew-agent"}
    provider = TracerProvider(resource=Resource.create(name))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


_ids: ContextVar[Mapping[str, str]] = ContextVar("ids", default=MappingProxyType({}))
_received: ContextVar[str | None] = ContextVar("received", default=None)
"""The trace context of what is being worked on, as it arrived."""


def log_ids() -> dict[str, str]:
    """Return the ids of what is being done now, for a log line, such as `envelope_id`, `call_id` and `trace_id`."""
    found = dict(_ids.get())
    if _tracer is not None:
        from opentelemetry import trace

        if (span := trace.get_current_span().get_span_context()).is_valid:
            found |= {
                "trace_id": trace.format_trace_id(span.trace_id),
                "span_id": trace.format_span_id(span.span_id),
            }
    return found


class ActiveSpan:
    """The span of a `with` block. Without tracing it records nothing."""

    def __init__(self, recorded: "Span | None" = None) -> None:
        self._recorded = recorded

    def set(self, **attributes: object) -> None:
        """Set attributes; `gen_ai__usage__input_tokens` is `gen_ai.usage.input_tokens`. None is left out."""
        if self._recorded is not None:
            self._recorded.set_attributes(_named(attributes))

    def fail(self, error_type: str) -> None:
        """Mark the span as failed, with a short name of the error."""
        if self._recorded is not None:
            from opentelemetry.trace import StatusCode

            self._recorded.set_attribute("error.type", error_type)
            self._recorded.set_status(StatusCode.ERROR)


@contextmanager
def _span(
    ids: Mapping[str, str | None], name: str, kind: str, header: str | None = None, **attributes: object
) -> Iterator[ActiveSpan]:
    """Make a span the current one while the block runs; `header` is the trace context that arrived with its cause.

    Without tracing, only sets the ids of log lines and the trace context that envelopes pass on.
    """
    known = {key: value for key, value in ids.items() if value is not None}
    reset_ids, reset_header = _ids.set({**_ids.get(), **known}), _received.set(header or _received.get())
    try:
        if _tracer is None:
            yield ActiveSpan()
            return
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        with _tracer.start_as_current_span(
            name,
            # None: the current span is the parent.
            context=None if header is None else TraceContextTextMapPropagator().extract({TRACEPARENT: header}),
            kind=SpanKind[kind],
            attributes=_named({**attributes, **{f"mew.{key}": value for key, value in known.items()}}),
            record_exception=False,
            set_status_on_exception=False,
        ) as recorded:
            span = ActiveSpan(recorded)
            try:
                yield span
            except BaseException as error:
                span.fail(type(error).__name__)
                raise
    finally:
        _ids.reset(reset_ids)
        _received.reset(reset_header)


def turn_span(agent: str, model: str | None, chat: Draft, session: str | None) -> AbstractContextManager[ActiveSpan]:
    """Open the span of the turn that answers a chat; it continues the trace of the chat's sender."""
    ids, header = {"envelope_id": chat.id, "participant": chat.sender}, header_of(chat)
    return _span(
        ids,
        f"invoke_agent {agent}",
        "INTERNAL",
        header,
        gen_ai__operation__name="invoke_agent",
        gen_ai__agent__name=agent,
        gen_ai__request__model=model,
        gen_ai__provider__name=_PROVIDER,
        gen_ai__conversation__id=session,
    )


def model_span(
    call_id: str, identity: ModelIdentity, request: ModelRequest, *, is_compacted: bool
) -> AbstractContextManager[ActiveSpan]:
    """Open the span of a model call; `record_reply` completes it. `call_id` is that of the context report."""
    server = urlsplit(identity.endpoint)
    return _span(
        {"call_id": call_id},
        f"chat {identity.model}",
        "CLIENT",
        gen_ai__operation__name="chat",
        gen_ai__provider__name=_PROVIDER,
        gen_ai__request__model=identity.model,
        gen_ai__request__max_tokens=request.max_output_tokens,
        gen_ai__conversation__compacted=True if is_compacted else None,
        server__address=server.hostname,
        server__port=server.port or {"http": 80, "https": 443}.get(server.scheme) if server.hostname else None,
    )


def record_reply(span: ActiveSpan, reply: ModelReply) -> None:
    """Record what a model's reply says of itself, as far as its provider reported it."""
    usage = reply.usage
    span.set(
        gen_ai__request__stream=reply.streamed,
        gen_ai__response__id=reply.request_id,
        gen_ai__response__model=reply.served_model,
        gen_ai__response__finish_reasons=(reply.finish_reason,),
        gen_ai__usage__input_tokens=usage.prompt_tokens if usage is not None else None,
        gen_ai__usage__output_tokens=usage.completion_tokens if usage is not None else None,
        gen_ai__usage__cache_read__input_tokens=usage.cached_tokens if usage is not None else None,
        gen_ai__usage__reasoning__output_tokens=usage.reasoning_tokens if usage is not None else None,
    )


def tool_span(call: ToolCall) -> AbstractContextManager[ActiveSpan]:
    """Open the span of a tool call of a model, wherever the tool runs."""
    return _span(
        {"tool_call_id": call.id},
        f"execute_tool {call.name}",
        "INTERNAL",
        gen_ai__operation__name="execute_tool",
        gen_ai__tool__name=call.name,
        gen_ai__tool__call__id=call.id,
        gen_ai__tool__type="function",
    )


def request_span(
    participant: str, request: Draft, method: str, tool: str | None, proposed_in: str | None
) -> AbstractContextManager[ActiveSpan]:
    """Open the span of an MCP request that a participant answers; it continues the trace of the request's sender.

    `proposed_in` is the trace context of the proposal that the request fulfils; programs without tracing approve, too.
    """
    ids, header = {"envelope_id": request.id, "participant": request.sender}, header_of(request) or proposed_in
    return _span(
        ids,
        method if tool is None else f"{method} {tool}",
        "SERVER",
        header,
        mcp__method__name=method,
        gen_ai__operation__name="execute_tool" if tool is not None else None,
        gen_ai__tool__name=tool,
        gen_ai__agent__name=participant,
    )


def approval_span(proposal: Draft, peer: str, method: str, tool: str | None) -> AbstractContextManager[ActiveSpan]:
    """Open the span in which a proposal waits for its decision. `mew.approval.decision` and `.by` say what it was."""
    ids, name = {"proposal_id": proposal.id}, f"await_approval {tool or method}"
    return _span(ids, name, "INTERNAL", gen_ai__tool__name=tool, mew__approval__peer=peer)


def http_span(method: str, path: str, header: str | None) -> AbstractContextManager[ActiveSpan]:
    """Open the span of an HTTP request that an agent answers; it continues the trace in the header `traceparent`."""
    return _span(
        {}, f"{method} {path}", "SERVER", _valid(header), http__request__method=method, http__route=path, url__path=path
    )


def compaction_span(model: str, trigger: str, tokens_before: int | None) -> AbstractContextManager[ActiveSpan]:
    """Open the span of a compaction; its summary calls are within it."""
    return _span(
        {},
        "compact_context",
        "INTERNAL",
        gen_ai__operation__name="compact_context",
        gen_ai__request__model=model,
        mew__compaction__trigger=trigger,
        mew__compaction__tokens_before=tokens_before,
    )


def traceparent_for(kind: str) -> str | None:
    """Return the header that an envelope of this kind carries now; None if it has no reason to carry one."""
    return traceparent() if kind in CARRYING_KINDS else None


def traceparent() -> str | None:
    """Return the trace context of the present work: the current span, or without tracing what arrived; else None."""
    if _tracer is None:
        return _received.get()
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get(TRACEPARENT)


def header_of(envelope: Draft) -> str | None:
    """Return the trace context that an envelope carries; None without one that can be read."""
    return _valid((envelope.model_extra or {}).get(TRACEPARENT))


def _valid(header: object) -> str | None:
    return header if isinstance(header, str) and _HEADER.fullmatch(header) else None


def _named(attributes: Mapping[str, object]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in attributes.items() if value is not None}
