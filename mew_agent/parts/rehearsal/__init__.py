"""The rehearsal model: a server of OpenAI's and Anthropic's APIs that ships with the project.

Deterministic, without weights, and without network access. It quotes what it was given, calls tools on request,
summarises by extraction, counts with its own documented tokenizer, and returns a provider's overflow error when a
request does not fit its window. Faults and other chunk shapes are options. It says what it is when asked.

    async with serve_rehearsal(RehearsalOptions(window_tokens=4096)) as server:
        model = OpenAIModel("rehearsal", server.base_url)
        async with aclosing(model.stream(request)) as events:
            async for event in events: ...
        server.requests[-1].prompt_tokens      # the true count of the last request
        server.change(status=429)              # from the next request on

`tool_requests` and `summaries` say which messages make it call a tool or write a summary.
"""

from mew_agent.parts.rehearsal.options import (
    RehearsalOptions,
    ReportedUsage,
    ScriptedReply,
    ScriptedToolCall,
    SummaryBehaviour,
    UsageOn,
)
from mew_agent.parts.rehearsal.service import EmbeddedRehearsal, RecordedRequest, RehearsalServer, serve_rehearsal

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
    "serve_rehearsal",
]
