"""Spans of real agents on a gateway, as the SDK's in-memory exporter sees them, and the trace context in envelopes."""

from collections.abc import AsyncIterator, Iterator

import anyio
import pytest
from openai import AsyncOpenAI
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_trace_id

from mew_agent.parts.openai_api.openai_app import create_app, serve_app
from mew_agent.parts.rehearsal.rehearsal_options import ScriptedReply, ScriptedToolCall
from mew_agent.parts.shared.chat_participant import ChatParticipant
from mew_agent.parts.tracing import spans
from tests.mew_agent.agent.test_agent_at_work import Scene, at_work, script
from tests.support.agents import AgentDriver, StartAgent
from tests.support.waiting import PATIENCE_SECONDS, until

ASKS_WRITER = ScriptedReply(tool_calls=(ScriptedToolCall(name="ask_writer", arguments='{"text": "SECRET-TEXT"}'),))


@pytest.fixture
def provider() -> Iterator[TracerProvider]:
    made = TracerProvider(shutdown_on_exit=False)
    spans.enable(made)
    yield made
    spans.disable()


@pytest.fixture
def exporter(provider: TracerProvider) -> InMemorySpanExporter:
    kept = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    return kept


@pytest.fixture
async def pair(start_agent: StartAgent, exporter: InMemorySpanExporter) -> AsyncIterator[AgentDriver]:
    """The agent `coder`, whose model first asks the agent `writer` by a tool; the writer's model has a cache."""
    drivers: list[AgentDriver] = []

    async def ask_writer(text: str) -> str:
        """Ask the writer."""
        ask = drivers[0].agent.ask
        answer = await ask("chat", {"text": text}, to="writer", answer="chat", timeout_seconds=PATIENCE_SECONDS)
        return str(answer.body["text"])

    async with (
        start_agent(name="writer", cached_tokens=7, served_model="rehearsal-2"),
        start_agent(name="coder", tools=[ask_writer], script=(ASKS_WRITER,)) as coder,
    ):
        drivers.append(coder)
        await until(lambda: "writer" in coder.agent.peers)
        yield coder


async def finished(exporter: InMemorySpanExporter, *names: str) -> dict[str, list[ReadableSpan]]:
    """The spans by name, as soon as there is one of each of these names."""

    def found() -> dict[str, list[ReadableSpan]]:
        spans: dict[str, list[ReadableSpan]] = {}
        for one in exporter.get_finished_spans():
            spans.setdefault(one.name, []).append(one)
        return spans

    await until(lambda: set(names) <= found().keys())
    return found()


def trace_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return format_trace_id(span.context.trace_id)


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent is not None else None


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


async def test_one_question_is_one_trace_across_agents(
    pair: AgentDriver, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    with provider.get_tracer("test").start_as_current_span("question") as question:
        await pair.ask("Ask the writer.")
    spans = await finished(exporter, "invoke_agent coder", "invoke_agent writer", "execute_tool ask_writer")
    (coder,), (writer,) = spans["invoke_agent coder"], spans["invoke_agent writer"]
    (tool,) = spans["execute_tool ask_writer"]
    calls = spans["chat rehearsal"]
    trace = format_trace_id(question.get_span_context().trace_id)
    assert {trace_of(one) for one in (coder, writer, tool, *calls)} == {trace}
    assert parent_of(coder) == question.get_span_context().span_id
    assert parent_of(tool) == id_of(coder)
    assert parent_of(writer) == id_of(tool)
    assert [parent_of(one) for one in calls].count(id_of(writer)) == 1
    assert [parent_of(one) for one in calls].count(id_of(coder)) == 2

    of_writer = next(dict(one.attributes or {}) for one in calls if parent_of(one) == id_of(writer))
    usage = pair.gateway.board().participants
    reported = next(one.status for one in usage if one.id == "writer")
    assert reported is not None
    assert reported.context is not None
    port = of_writer.pop("server.port")
    assert isinstance(port, int)
    assert {key: value for key, value in of_writer.items() if key != "gen_ai.response.id"} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "rehearsal",
        "gen_ai.request.stream": True,
        "gen_ai.response.model": "rehearsal-2",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": reported.context.prompt_tokens,
        "gen_ai.usage.output_tokens": reported.context.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": 7,
        "server.address": "127.0.0.1",
        "mew.call_id": reported.context.call_id,
    }
    assert (coder.attributes or {})["gen_ai.agent.name"] == "coder"
    assert (tool.attributes or {})["gen_ai.tool.name"] == "ask_writer"
    assert {calls[0].kind, tool.kind} == {SpanKind.CLIENT, SpanKind.INTERNAL}
    assert "SECRET-TEXT" not in "".join(one.to_json() for one in exporter.get_finished_spans())
    # All members see the header; only envelopes that begin work have it.
    chats = pair.recorder.sent_by("coder", "chat")
    assert chats[0].as_dict()["traceparent"].split("-")[1] == trace
    assert all("traceparent" not in one.as_dict() for one in pair.recorder.sent_by("coder", "participant/status"))


WORKS = [("scales__add", '{"a": 1, "b": 2}'), ("calculator__add", '{"a": 1, "b": 2}')]
QUESTION = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def ask_over_http(scene: Scene) -> None:
    """Ask the agent through `mew serve openai`, as a client that has a trace."""
    bob = ChatParticipant(scene.gateway.ws_url, space="demo", person="bob", token=scene.gateway.token_of("bob"))
    async with (
        bob,
        serve_app(create_app(bob, api_key="key"), bob) as url,
        AsyncOpenAI(base_url=url, api_key="key") as api,
    ):
        await until(lambda: "coder" in bob.peers and bool(bob.peers["coder"].context.status))
        with anyio.fail_after(PATIENCE_SECONDS):
            answer = await api.chat.completions.create(
                model="coder", messages=[{"role": "user", "content": "Add."}], extra_headers={"traceparent": QUESTION}
            )
    assert answer.choices[0].message.content == "I see."


async def test_an_http_request_is_one_trace_through_an_approval(
    exporter: InMemorySpanExporter,
) -> None:
    async with at_work(script=script(*WORKS)) as scene:
        await ask_over_http(scene)
        spans = await finished(exporter, "POST /v1/chat/completions", "invoke_agent coder")
    of_question = {name: [one for one in found if trace_of(one) == QUESTION[3:35]] for name, found in spans.items()}
    (http,), (turn,) = of_question["POST /v1/chat/completions"], of_question["invoke_agent coder"]
    (proposing,), (requesting,) = of_question["execute_tool scales__add"], of_question["execute_tool calculator__add"]
    (approval,) = of_question["await_approval add"]
    assert f"{parent_of(http):x}" == QUESTION[36:52]
    assert [parent_of(turn), parent_of(proposing), parent_of(requesting)] == [id_of(http), id_of(turn), id_of(turn)]
    assert (approval.attributes or {})["mew.approval.decision"] == "fulfilled"
    assert (approval.attributes or {})["mew.approval.by"] == "ada"
    assert (http.attributes or {})["http.response.status_code"] == 200
    # The person who approved sent no trace context, so the tool continues that of the proposal.
    served = of_question["tools/call add"]
    assert {parent_of(one) for one in (*served, approval)} == {id_of(proposing), id_of(requesting)}
    assert {str((one.attributes or {})["gen_ai.agent.name"]) for one in served} == {"calculator", "scales"}


async def test_a_trace_context_is_passed_on_without_tracing() -> None:
    async with at_work(script=script(*WORKS)) as scene:
        await ask_over_http(scene)
        chat = await scene.recorder.first("bob", "chat")
        proposal = await scene.recorder.first("coder", "mcp/proposal", method="tools/call")
        request = await scene.recorder.first("coder", "mcp/request", method="tools/call")
    assert {one.as_dict()["traceparent"] for one in (chat, proposal, request)} == {QUESTION}


async def test_a_compaction_has_a_span_around_its_summary_call(
    start_agent: StartAgent, exporter: InMemorySpanExporter
) -> None:
    async with start_agent() as driver:
        for number in range(4):
            await driver.ask(f"{number}: how long is a line of the lexer? Say it again in other words, please.")
        done = await driver.ada.compact("coder")
        spans = await finished(exporter, "compact_context")
        await driver.ask("And now?")
        calls = (await finished(exporter, "chat rehearsal"))["chat rehearsal"]
    (compaction,) = spans["compact_context"]
    found = compaction.attributes or {}
    assert found["mew.compaction.trigger"] == "requested"
    assert found["mew.compaction.tokens_before"] == done.tokens_before
    assert found["mew.compaction.tokens_after"] == done.tokens_after
    assert found["mew.compaction.freed_tokens"] == done.freed_tokens
    assert [parent_of(one) for one in calls].count(id_of(compaction)) == len(driver.summary_requests)
    assert (calls[-1].attributes or {})["gen_ai.conversation.compacted"] is True


async def test_a_failed_call_marks_its_span_and_its_turn(
    start_agent: StartAgent, exporter: InMemorySpanExporter
) -> None:
    async with start_agent(script=(ScriptedReply(status=500),)) as driver:
        await driver.ask("Hello?")
        spans = await finished(exporter, "invoke_agent coder", "chat rehearsal")
    for one in (spans["chat rehearsal"][0], spans["invoke_agent coder"][0]):
        assert (one.attributes or {})["error.type"] == "ModelFailed"
        assert (one.status.status_code, one.status.description) == (StatusCode.ERROR, None)
        assert one.events == ()


async def test_without_tracing_no_envelope_has_a_header(start_agent: StartAgent) -> None:
    async with start_agent() as driver:
        await driver.ask("Hello?")
        sent = [one.as_dict() for one in driver.recorder.sent_by("coder")]
    assert sent
    assert not any("traceparent" in one for one in sent)


async def test_a_header_that_is_no_trace_context_begins_a_new_trace(
    start_agent: StartAgent, exporter: InMemorySpanExporter
) -> None:
    async with start_agent() as driver:
        for header in ("nonsense", 7, {"x": 1}):
            envelope = driver.ada.messenger.draft("chat", {"text": "Hello?"}, to=("coder",))
            body = {**envelope.as_dict(), "traceparent": header}
            with anyio.fail_after(PATIENCE_SECONDS):
                await driver.ada.messenger.send_envelope(type(envelope).model_validate(body))
        await until(lambda: len(exporter.get_finished_spans()) >= 6)
    turns = [one for one in exporter.get_finished_spans() if one.name == "invoke_agent coder"]
    assert [parent_of(one) for one in turns] == [None, None, None]
