"""The rehearsal model: an OpenAI-compatible server that ships with the project.

Deterministic, no network, no weights. It answers by quoting what it was given, calls tools when asked to,
summarises by extraction, counts with its own documented tokenizer, and honours its window with the provider's
overflow error. Faults and other chunk shapes are options. It says what it is: model `rehearsal`, `owned_by` in
`GET /v1/models`, the text of `GET /`, and when asked who it is.

    async with serve_rehearsal(RehearsalOptions(window_tokens=4096)) as server:
        model = OpenAIModel("rehearsal", server.base_url)
        async with aclosing(model.stream(request)) as events:
            async for event in events: ...
        server.requests[-1].prompt_tokens      # what the last request really held
        server.change(status=429)              # from the next request on

* `serve_rehearsal(options, host=, port=0)` runs it in the current event loop; `run_rehearsal` in the foreground.
* A tool is called when the last user message says `call NAME with {"a": 1}` (also use, run, invoke; several in
  one message are parallel calls) or mentions a tool whose name is no plain word. Tool results are then quoted.
* A summary is given when the first system message or the last user message orders one in a sentence of its own
  (`Summarise ...`, `You summarise ...`, `Write a summary ...`); `## Headings` in the order become its sections.
* `script` and `fixed_usage` dictate replies and reported usage call by call; summary requests take none of them.
* `requests` records each completion request (body, true counts, reported usage, whether the caller went away),
  and `await server.wait_until(condition)` waits for a change there.
* `tokenizer.count`, `tokenizer.count_request` are the truth that tests compare with.
"""

from mew_agent.rehearsal.options import (
    RehearsalOptions,
    ReportedUsage,
    ScriptedReply,
    ScriptedToolCall,
    SummaryBehaviour,
    UsageOn,
)
from mew_agent.rehearsal.server import RehearsalServer, run_rehearsal, serve_rehearsal
from mew_agent.rehearsal.service import RecordedRequest

__all__ = [
    "RecordedRequest",
    "RehearsalOptions",
    "RehearsalServer",
    "ReportedUsage",
    "ScriptedReply",
    "ScriptedToolCall",
    "SummaryBehaviour",
    "UsageOn",
    "run_rehearsal",
    "serve_rehearsal",
]
