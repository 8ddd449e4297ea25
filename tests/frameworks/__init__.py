"""Other agent libraries, each in an environment of its own, on the rehearsal model: `make test-frameworks`."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

FOLDER_VARIABLE: Final = "MEW_FRAMEWORKS"
"""Names the folder with the environments; without it, only what `make test` installs is tested."""

ENVIRONMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "langgraph": ("langchain", "langchain-openai", "langgraph"),
    "openai-agents": ("openai-agents",),
    "pydantic-ai": ("pydantic-ai-slim[openai]",),
    "crewai": ("crewai",),
    "clients": ("anthropic", "autogen-core", "autogen-ext[openai]", "botocore", "google-genai", "ollama", "openai"),
}
"""What pip installs into each environment. Together they need versions of `mcp` and openai that exclude each other."""

ENVIRONMENT_OF: Final[Mapping[str, str]] = {
    "langchain_agent.py": "langgraph",
    "langgraph_agent.py": "langgraph",
    "openai_agents_agent.py": "openai-agents",
    "pydantic_ai_agent.py": "pydantic-ai",
    "crewai_agent.py": "crewai",
}
"""The environment of each example."""


def interpreters() -> Mapping[str, str]:
    """Return the interpreter of each environment that is installed."""
    folder = os.environ.get(FOLDER_VARIABLE)
    found = {} if folder is None else {name: Path(folder).resolve() / name / "bin" / "python" for name in ENVIRONMENTS}
    return {name: str(path) for name, path in found.items() if path.exists()}
