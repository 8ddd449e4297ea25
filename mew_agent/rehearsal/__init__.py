"""The rehearsal model: an OpenAI-compatible server that ships with the project.

Deterministic, without weights, and without network access. It quotes what it was given, calls tools on request,
summarises by extraction, counts with its own documented tokenizer, and returns a provider's overflow error when a
request does not fit its window. Faults and other chunk shapes are options. It identifies itself: as model `rehearsal`,
in `owned_by` of `GET /v1/models`, in the text of `GET /`, and when asked who it is.

    async with serve_rehearsal(RehearsalOptions(window_tokens=4096)) as server:
        model = OpenAIModel("rehearsal", server.base_url)
        async with aclosing(model.stream(request)) as events:
            async for event in events: ...
        server.requests[-1].prompt_tokens      # the true count of the last request
        server.change(status=429)              # from the next request on

* `serve_rehearsal(options, host=, port=0)` runs the server in the current event loop, `run_rehearsal` in the
  foreground. `EmbeddedRehearsal` is the same as a `Model` that starts its server at the first call.
* The model calls a tool when the last user message says `call NAME with {"a": 1}` (also use, run, invoke; several in
  one message are parallel calls) or mentions a tool whose name is not an ordinary word. It then quotes the results.
* It writes a summary when the first system message or the last user message requests one in a separate sentence
  (`Summarise ...`, `You summarise ...`, `Write a summary ...`). `## Headings` in the request become sections.
* `script` and `fixed_usage` set replies and reported usage call by call. Summary requests skip both.
* `requests` records the newest completion requests (body, true counts, reported usage, whether the client
  disconnected), and `await server.wait_until(condition)` waits for a change there.
* `tokenizer.count` and `tokenizer.count_request` are the true counts that tests compare with.
"""

from mew_agent.rehearsal.options import (
    RehearsalOptions,
    ReportedUsage,
    ScriptedReply,
    ScriptedToolCall,
    SummaryBehaviour,
    UsageOn,
)
from mew_agent.rehearsal.server import EmbeddedRehearsal, RehearsalServer, run_rehearsal, serve_rehearsal
from mew_agent.rehearsal.service import RecordedRequest

__all__ = [
    "EmbeddedRehearsal",
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
