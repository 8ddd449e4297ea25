"""[pure] Reads the results of other agent libraries: the text, the usage of the last model call, and the history.

Imports none of the libraries, so it works with every version whose results have these attributes.
`mew_agent.model.usage` reads usage objects.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from mew_protocol.json_values import value_at

from mew_agent.model.reply_events import SERVER_TOOLS
from mew_agent.model.usage import Usage, usage_from

SERVER_CALLS: Final = SERVER_TOOLS | {"server_tool_call", "builtin-tool-call", "native-tool-call"}
"""Parts of a reply that are calls of tools at the provider's server; also LangChain's and pydantic-ai's names."""


@dataclass(frozen=True, slots=True)
class LibraryReply:
    """The answer of another library's agent.

    `usage` is that of the last model call, which gives the context size. `is_sum`: only a sum over several calls is
    known. It is None if nothing was reported. `history` has the library's messages up to this turn.
    """

    text: str
    usage: Usage | None
    history: Sequence[Any] = ()


def from_langgraph(result: Any) -> LibraryReply:
    """Read the state returned by `graph.ainvoke`, for a graph or LangChain's `create_agent`; it has `messages`."""
    messages = result["messages"]
    reply = next(one for one in reversed(messages) if one.type == "ai")
    content = reply.content if isinstance(reply.content, list) else ()
    return LibraryReply(str(reply.text), _last_call(reply.usage_metadata, content), messages)


def from_openai_agents(result: Any) -> LibraryReply:
    """Read the result of `Runner.run`."""
    last = result.raw_responses[-1] if result.raw_responses else None
    usage = None if last is None else _last_call(last.usage, last.output)
    return LibraryReply(str(result.final_output), usage, result.to_input_list())


def from_pydantic_ai(result: Any) -> LibraryReply:
    """Read the result of `agent.run`."""
    usage = _last_call(result.response.usage, result.response.parts)
    return LibraryReply(str(result.output), usage, result.all_messages())


def from_crewai(result: Any) -> LibraryReply:
    """Read the result of `agent.kickoff` or `crew.kickoff`. It only has the sum of all calls; a crew has no history."""
    messages = getattr(result, "messages", ())
    return LibraryReply(
        result.raw, usage_from(result.token_usage), [one for one in messages if one["role"] != "system"]
    )


def _last_call(usage: object, parts: Iterable[object]) -> Usage | None:
    """Return the usage of a reply; a sum over model calls if the provider's server ran a tool."""
    read = usage_from(usage)
    kinds = {value_at(one, "type") or getattr(one, "type", getattr(one, "part_kind", None)) for one in parts}
    return replace(read, is_sum=True) if read is not None and kinds & SERVER_CALLS else read
