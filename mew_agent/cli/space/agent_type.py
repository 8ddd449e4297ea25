"""`agent:` in a space.yaml: an agent with a conversation of its own."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from mew_protocol import kinds
from mew_protocol.capability import CapabilitySet
from mew_protocol.envelope import Draft
from mew_protocol.payloads.mcp import COMPACT_CONTEXT
from mew_settings.participant_types import DeclaredRights, ParticipantStart, ParticipantType, Place, ProgramStart
from mew_settings.plugins import entry_points

from mew_agent.settings import BUILTIN_MODELS, WrittenAgentSettings

AGENT_KEY: Final = "agent"

_MODEL_VARIABLES: Final = ("OPENAI_BASE_URL", "OPENAI_MODEL", "MEW_TOKENIZER_FILE")
"""Settings of agents that are not secrets."""

_API_KEY: Final = "OPENAI_API_KEY"
"""The key that an agent uses if its settings name no other."""


class AgentType(ParticipantType):
    """Starts `mew agent run`. `cli.space.agent_sections` prepares its settings."""

    settings = WrittenAgentSettings
    variable = "MEW_AGENT_CONFIG"
    words = ("agent", "run")
    more_keys: ClassVar[Mapping[str, tuple[Any, Any]]] = {"own_process": (bool, False)}

    def start(self, start: ParticipantStart) -> ProgramStart:
        """Return the command, and the prepared settings."""
        host = () if start.settings["own_process"] else start.program("mew", ("agent", "run", "--from-stdin"))
        return ProgramStart(start.program("mew", ("agent", "run", *start.joins)), start.prepared, host)

    def inherits(self, section: WrittenAgentSettings | None) -> tuple[str, ...]:
        """Return the model's environment variables, including those with its keys."""
        if section is None:
            return (*_MODEL_VARIABLES, _API_KEY)
        given = section.given()
        summariser = given.get("summariser")
        named = [
            one["api_key_env"] for one in (given, summariser) if isinstance(one, Mapping) and one.get("api_key_env")
        ]
        has_key = "api_key_env" in given or given.get("base_url") in entry_points(BUILTIN_MODELS)
        return (*_MODEL_VARIABLES, *named, *(() if has_key else (_API_KEY,)))

    def mentions(self, section: WrittenAgentSettings) -> Iterator[tuple[Place, str]]:
        """Yield the participants that approve compactions."""
        for approver in section.compaction.approve if section.compaction is not None else ():
            yield ("compaction", "approve"), approver

    def warnings(self, name: str, section: WrittenAgentSettings, space: DeclaredRights) -> Iterator[tuple[Place, str]]:
        """Yield a warning if compactions cannot be proposed for approval or cannot be approved."""
        if section.compaction is None:
            return
        call = {"method": "tools/call", "params": {"name": COMPACT_CONTEXT}}
        if not CapabilitySet(space.patterns_of(name)).allows(Draft(kind=kinds.MCP_PROPOSAL, payload=call)):
            yield (
                ("compaction",),
                f"'{name}' may not propose its compactions (mcp/proposal), so it compacts without asking",
            )
        approval = Draft(kind=kinds.MCP_REQUEST, to=(name,), payload=call)
        for approver in section.compaction.approve:
            if not CapabilitySet(space.patterns_of(approver)).allows(approval):
                yield ("compaction",), f"'{approver}' may not approve compactions of '{name}' (mcp/request to '{name}')"

    def needs(self, section: WrittenAgentSettings) -> Iterator[str]:
        """Yield the extra of its model."""
        from mew_agent.model.builtin import builtin_model

        model = builtin_model(section.base_url)
        if model is not None and model.extra is not None:
            yield f"[{model.extra}]"


AGENT = AgentType()
