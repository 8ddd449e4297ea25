"""Connect agents of other libraries: LangGraph, openai-agents, pydantic-ai, CrewAI.

`from_...` read the library's result, and `answer_chats` makes a participant of it. None of them imports the library.
"""

from mew_agent.parts.integrations.chats import answer_chats
from mew_agent.parts.integrations.library_results import (
    LibraryReply,
    from_crewai,
    from_langgraph,
    from_openai_agents,
    from_pydantic_ai,
)

__all__ = ["LibraryReply", "answer_chats", "from_crewai", "from_langgraph", "from_openai_agents", "from_pydantic_ai"]
