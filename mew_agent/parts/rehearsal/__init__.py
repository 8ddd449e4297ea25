"""The rehearsal model: a server of OpenAI's and Anthropic's APIs that ships with the project.

Deterministic, without weights, and without network access. It quotes the conversation, calls tools on request,
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

from importlib import import_module
from typing import TYPE_CHECKING

from mew_agent.parts.rehearsal.rehearsal_options import RehearsalOptions as RehearsalOptions
from mew_agent.parts.rehearsal.rehearsal_options import ReportedUsage as ReportedUsage
from mew_agent.parts.rehearsal.rehearsal_options import ScriptedReply as ScriptedReply
from mew_agent.parts.rehearsal.rehearsal_options import ScriptedToolCall as ScriptedToolCall
from mew_agent.parts.rehearsal.rehearsal_options import SummaryBehaviour as SummaryBehaviour
from mew_agent.parts.rehearsal.rehearsal_options import UsageOn as UsageOn

if TYPE_CHECKING:
    from mew_agent.parts.rehearsal.model_service import EmbeddedRehearsal as EmbeddedRehearsal
    from mew_agent.parts.rehearsal.model_service import RecordedRequest as RecordedRequest
    from mew_agent.parts.rehearsal.model_service import RehearsalServer as RehearsalServer
    from mew_agent.parts.rehearsal.model_service import serve_rehearsal as serve_rehearsal

_OF_SERVICE = ("EmbeddedRehearsal", "RecordedRequest", "RehearsalServer", "serve_rehearsal")


def __getattr__(name: str) -> object:
    """Load a name at first use, because `mew --help` needs no web server."""
    if name not in _OF_SERVICE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.model_service"), name)
