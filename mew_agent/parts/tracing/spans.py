"""Records spans with OpenTelemetry, by its conventions for generative AI, and exports them.

Owns the names and attributes of spans. Only this module imports `opentelemetry`, when tracing is enabled.

Source: https://github.com/open-telemetry/semantic-conventions-genai (spans `invoke_agent`, `chat`, `execute_tool`;
`tools/call` of MCP), and `POST` of HTTP. Compactions and approvals have no convention yet; their attributes start with
`mew.`.
"""

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from mew_settings.installation import install_command

from mew_agent import tracing
from mew_agent.errors import MissingExtra
from mew_agent.tracing import Outcome, Work

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider

logger = logging.getLogger("mew_agent.parts.tracing")

_ENDPOINT_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROVIDER: Final = {"gen_ai.provider.name": "openai"}
"""`gen_ai.provider.name` names the API, not the owner of the model."""

_TOOL: Final = {"gen_ai.operation.name": "execute_tool"}


@dataclass(frozen=True, slots=True)
class SpanForm:
    """The span form of one kind of work.

    `name` is a template for its facts. `attributes` are the names of facts; `fixed` attributes are always set.
    """

    name: str
    kind: str
    attributes: Mapping[str, str]
    fixed: Mapping[str, str] = field(default_factory=dict)


FORMS: Final[Mapping[Work, SpanForm]] = {
    "turn": SpanForm(
        "invoke_agent {agent}",
        "INTERNAL",
        {"agent": "gen_ai.agent.name", "model": "gen_ai.request.model", "session": "gen_ai.conversation.id"},
        {"gen_ai.operation.name": "invoke_agent", **_PROVIDER},
    ),
    "model_call": SpanForm(
        "chat {model}",
        "CLIENT",
        {
            "model": "gen_ai.request.model",
            "max_tokens": "gen_ai.request.max_tokens",
            "compacted": "gen_ai.conversation.compacted",
            "address": "server.address",
            "port": "server.port",
        },
        {"gen_ai.operation.name": "chat", **_PROVIDER},
    ),
    "tool_call": SpanForm(
        "execute_tool {tool}",
        "INTERNAL",
        {"tool": "gen_ai.tool.name", "call": "gen_ai.tool.call.id"},
        {**_TOOL, "gen_ai.tool.type": "function"},
    ),
    "request": SpanForm(
        "{method} {tool}",
        "SERVER",
        {"method": "mcp.method.name", "tool": "gen_ai.tool.name", "agent": "gen_ai.agent.name"},
    ),
    "approval": SpanForm(
        "await_approval {tool}",
        "INTERNAL",
        {
            "tool": "gen_ai.tool.name",
            "peer": "mew.approval.peer",
            "decision": "mew.approval.decision",
            "by": "mew.approval.by",
        },
    ),
    "http": SpanForm(
        "{method} {path}",
        "SERVER",
        {
            "method": "http.request.method",
            "path": "url.path",
            "route": "http.route",
            "status_code": "http.response.status_code",
        },
    ),
    "compaction": SpanForm(
        "compact_context",
        "INTERNAL",
        {
            "model": "gen_ai.request.model",
            "trigger": "mew.compaction.trigger",
            "tokens_before": "mew.compaction.tokens_before",
            "tokens_after": "mew.compaction.tokens_after",
            "freed_tokens": "mew.compaction.freed_tokens",
        },
        {"gen_ai.operation.name": "compact_context"},
    ),
}


def enable(provider: "TracerProvider | None" = None) -> None:
    """Record spans from now on, with this provider (default: the global one). Raises `MissingExtra`."""
    tracing.record_with(make_recorder(provider))


def disable() -> None:
    """Record no more spans."""
    tracing.record_with(None)


def make_recorder(provider: "TracerProvider | None" = None) -> "SpanRecorder":
    """Return a recorder for a provider (default: the global one). Raises `MissingExtra`."""
    try:
        from opentelemetry import trace
    except ImportError:
        raise MissingExtra("tracing", "'otel'", install_command("otel")) from None
    return SpanRecorder(trace.get_tracer("mew_agent", tracer_provider=provider))


def recorder_for(environ: Mapping[str, str]) -> "SpanRecorder | None":
    """Return an exporting recorder if `OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_TRACES_EXPORTER` is set.

    `service.name` is `OTEL_SERVICE_NAME`, or `mew-agent`. Warns if the extra is missing.
    """
    exporter = environ.get("OTEL_TRACES_EXPORTER", "")
    has_endpoint = not exporter and any(environ.get(one) for one in _ENDPOINT_VARIABLES)
    is_off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if is_off or not (has_endpoint or exporter in ("otlp", "console")):
        return None
    try:
        return make_recorder(_exporting_provider(is_console=exporter == "console"))
    except (ImportError, MissingExtra):
        logger.warning("traces are not exported: install the extra with %s", install_command("otel"))
        return None


def _exporting_provider(*, is_console: bool) -> "TracerProvider":
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


class SpanRecorder:
    """Records with a tracer of OpenTelemetry; see `tracing.Recorder`."""

    def __init__(self, tracer: "Tracer") -> None:
        self._tracer = tracer

    @contextmanager
    def span(
        self, work: Work, ids: Mapping[str, str], header: str | None, facts: Mapping[str, object]
    ) -> Iterator[Outcome]:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        form, name, attributes = FORMS[work], *_described(work, facts)
        with self._tracer.start_as_current_span(
            name,
            # None: the current span is the parent.
            context=None if header is None else TraceContextTextMapPropagator().extract({tracing.TRACEPARENT: header}),
            kind=SpanKind[form.kind],
            attributes={**attributes, **{f"mew.{key}": one for key, one in ids.items()}},
            record_exception=False,
            set_status_on_exception=False,
        ) as recorded:
            outcome = Outcome()
            try:
                yield outcome
            finally:
                _record(recorded, form, outcome)

    def traceparent(self) -> str | None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        return carrier.get(tracing.TRACEPARENT)

    def log_ids(self) -> Mapping[str, str]:
        from opentelemetry import trace

        span = trace.get_current_span().get_span_context()
        if not span.is_valid:
            return {}
        return {"trace_id": trace.format_trace_id(span.trace_id), "span_id": trace.format_span_id(span.span_id)}


def _record(recorded: "Span", form: SpanForm, outcome: Outcome) -> None:
    """Add the outcome of the work to its span."""
    from opentelemetry.trace import StatusCode

    recorded.set_attributes(_named(form, outcome.facts))
    if (reply := outcome.reply) is not None:
        usage = reply.usage
        found: dict[str, Any] = {
            "gen_ai.request.stream": reply.streamed,
            "gen_ai.response.id": reply.request_id,
            "gen_ai.response.model": reply.served_model,
            "gen_ai.response.finish_reasons": (reply.finish_reason,),
        }
        if usage is not None:
            found |= {
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.completion_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
                "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
            }
        recorded.set_attributes({name: one for name, one in found.items() if one is not None})
    if outcome.failure is not None:
        recorded.set_attribute("error.type", outcome.failure)
        recorded.set_status(StatusCode.ERROR)


def _described(work: Work, facts: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of a span and its attributes."""
    form, fixed = FORMS[work], FORMS[work].fixed
    shown = dict(facts)
    match work:
        case "model_call":
            server = urlsplit(facts["endpoint"])
            port = server.port or {"http": 80, "https": 443}.get(server.scheme)
            shown |= {"address": server.hostname, "port": port if server.hostname else None}
            shown["compacted"] = facts["compacted"] or None
        case "request" if facts["tool"] is not None:
            fixed = _TOOL
        case "http":
            shown["route"] = facts["path"]
        case _:
            pass
    named = {**shown, "tool": facts.get("tool") or (facts.get("method") if work == "approval" else "")}
    return form.name.format_map(named).strip(), {**fixed, **_named(form, shown)}


def _named(form: SpanForm, facts: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: facts.get(fact) for fact, name in form.attributes.items()}
    return {name: value for name, value in known.items() if value is not None}
