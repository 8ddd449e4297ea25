"""[pure] The settings of an agent: each key, its type, bounds and default, declared once.

Shared by the `agent:` section of space.yaml and an agent's own configuration file, so that the launcher and the agent
accept the same keys. The string below a field is its text in the reference. `mew_agent.config` reads the values; the
agent uses them.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from mew_protocol.context_report import MAX_PIN_CHARS, MAX_PINS
from mew_protocol.json_values import as_list
from mew_settings.plugins import entry_points
from mew_settings.setting_problems import matching
from mew_settings.values import Count, Number, Positive, Seconds, SparseSettings, bare_off_as_text, text_as
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

BUILTIN_MODELS: Final = "mew_agent.models"
"""The table of models that `base_url` selects by a name in place of a URL; see `mew_agent.model.builtin`."""

DEFAULT_MODEL: Final = "gpt-4o"


def _checked_model_url(text: str) -> str:
    builtin = sorted(entry_points(BUILTIN_MODELS), reverse=True)
    if text in builtin or re.match(r"https?://[^/]", text):
        return text
    *urls, last = ("a URL like http://127.0.0.1:1234/v1", *(f"'{name}'" for name in builtin))
    raise ValueError(f"must be {', '.join(urls)} or {last}" if urls else f"must be {last}")


BetweenSteps = Literal["never", "asker", "urgent", "all"]
"""The chats that reach a running turn: none; those of its asker; also urgent ones; all."""

PartOfWindow = Annotated[
    str, matching(r"\s*[0-9]+\s*(%|/\s*[1-9][0-9]*)\s*", "must be a part of the window, such as 75% or 3/4")
]
ModelUrl = Annotated[str, AfterValidator(_checked_model_url)]
ModelName = Annotated[
    str, Field(min_length=1), matching(r"(?:[^$]|\$(?!\{))*", "must be the name of a model, such as gpt-4o")
]
PinText = Annotated[str, Field(min_length=1, max_length=MAX_PIN_CHARS)]


class Summariser(SparseSettings):
    """The model that writes summaries. Without `base_url` it is on the agent's own server and uses its API key."""

    model: ModelName
    """Model name."""
    base_url: ModelUrl | None = None
    """URL of its server (default: the agent's)."""
    api_key: SecretStr | None = None
    """API key of its server."""
    api_key_env: str | None = None
    """Environment variable that holds the API key."""

    _from_name = text_as("model")


class LoopLimits(SparseSettings):
    """When an agent stops answering: other agents, until a person or a program sends a chat; any sender, until its
    hourly budget has room.
    """

    hops: Positive = 8
    """Messages between agents in a thread since the last one from a person or a program."""
    exchanges_per_minute: Positive = 30
    """Answers to one agent within a minute."""
    tokens_per_hour: Positive = 50_000_000
    """Tokens, as reported, that the agent spends for one sender within an hour; beyond it, the sender is refused."""


class CompactionSettings(SparseSettings):
    """The approval of compactions."""

    approve: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(as_list), Field(min_length=1)]
    """Participant that may approve, change or reject a compaction, or a list of them."""
    wait_seconds: Annotated[Seconds, Field(le=86_400)] = 60.0
    """Time to decide; without a decision the compaction runs."""


class AgentSettings(SparseSettings):
    """The settings of an agent without its identity, its API key and its store."""

    name: str | None = None
    """Name shown to others (default: the participant id)."""
    model: ModelName = DEFAULT_MODEL
    """Model to call, or a file that a built-in model runs."""
    base_url: ModelUrl | None = None
    """URL of an OpenAI-compatible server (default: OpenAI), or the name of a built-in model."""
    system_prompt: str | None = None
    """System prompt (default: a short general one)."""
    pins: tuple[PinText, ...] = Field(default=(), max_length=MAX_PINS)
    """Texts that stay verbatim in every prompt, such as safety rules."""
    pin_tools: bool = False
    """Offer the model tools to pin and unpin texts."""
    context_token_limit: Positive | None = None
    """Context window in tokens (default: ask the model's server; 128,000 if it does not report one)."""
    policy: str | dict[str, Any] = "mew"
    """Context policy: a preset's name, a file (relative to this file), or a policy written inline."""
    policy_settings: dict[str, Number] = Field(default_factory=dict)
    """Settings of the policy; they override those from `models`."""
    policy_scope: Literal["any"] | None = None
    """`any` allows a policy for one provider to run with another."""
    provider: str | None = None
    """Provider of the model, for policies that apply to one provider."""
    compaction: CompactionSettings | None = None
    """Ask a participant before compacting (default: compact without asking)."""
    compact_at: PartOfWindow | None = None
    """Part of the window, such as `75%` or `3/4`, at which the agent compacts after a call (default: the policy's; for
    `mew` 9/10)."""
    compact_early: bool = False
    """Also compact at the end of a task, from 70 % of the window on, if the next usual task would not fit."""
    measure_compactions: bool = False
    """Measure the tokens that a compaction frees with two or three model calls of one token if the server cannot count
    prompts."""
    max_compacting: Positive | None = None
    """Number of agents of the space that may compact at the same time; further ones wait while they have room (default:
    half of the agents, at least one)."""
    summariser: Summariser | None = None
    """Model that writes summaries: a name, or `model`, `base_url` and `api_key_env` (default: the policy's, else the
    agent's own model)."""
    summary_timeout_seconds: Seconds = 60.0
    """Timeout for writing one summary, plus 1 second for each 1,000 tokens that it replaces."""
    reminders: bool | None = None
    """Offer the model tools for reminders (default: if the policy uses reminders)."""
    upkeep: bool = True
    """Let the model tidy its context while no question waits."""
    tokenizer: Annotated[str, BeforeValidator(bare_off_as_text)] = "auto"
    """Tokenizer for exact counts: a family such as `gpt`, `auto` to choose by the name of the model, or `off`."""
    tokenizer_file: Path | None = None
    """Vocabulary of the tokenizer, if its extra includes none (relative to this file)."""
    conversation_history_length: Annotated[Count, Field(ge=0)] | None = None
    """Number of newest history items sent to the model (default: all)."""
    auto_respond: bool = True
    """Answer chats."""
    answer_broadcasts: Literal["rules", "model", "never"] = "rules"
    """Which chats without an addressee to answer: those with a question mark (`rules`), those the model judges to be
    for it (`model`), or none (`never`)."""
    between_steps: BetweenSteps = "asker"
    """Which chats reach a running answer before its next model call: those of its asker (`asker`), also chats marked
    `urgent` (`urgent`), all that wait (`all`), or none (`never`)."""
    together: int | None = Field(default=None, ge=2, le=64)
    """If more chats than this number wait, answer up to this number in one turn (default: each in its own)."""
    loop_limits: LoopLimits = Field(default_factory=LoopLimits)
    """Limits of conversations between agents without a person (chats then wait), and of the tokens for one sender."""
    max_iterations: Positive = 10
    """Limit of model calls for one answer."""
    max_turn_seconds: Seconds = 1800.0
    """Timeout for one answer, pauses included."""
    max_question_age_seconds: Seconds = 3600.0
    """Age above which a question from before a restart is declined in one sentence."""
    max_sessions: int = Field(default=16, ge=1, le=64)
    """Sessions kept apart for one participant, such as a client. It loses the least recently used one first."""
    store_max_days: Positive | None = None
    """Age in days above which messages outside the context are removed from the session file, or from memory (default:
    keep)."""
    store_max_megabytes: Positive = 256
    """Size above which the oldest messages outside the context are removed from the session file, or from memory."""
    store_max_compactions: Positive = 100
    """Number of compactions that can be listed and undone; older ones are dropped."""
    tool_timeout_seconds: Seconds = 300.0
    """Timeout for the agent's own tools."""
    peer_timeout_seconds: Seconds = 60.0
    """Timeout for a peer's answer."""
    proposal_timeout_seconds: Seconds = 300.0
    """Timeout for a proposal to be fulfilled."""
    discover_tools: bool = True
    """Ask peers for their tools on joining."""
    board_tools: bool = True
    """Offer the model tools that read other agents' context and ask them to compact."""
    context_line: bool = False
    """Put the agent's own context figures before each question."""
    max_result_tokens: Positive | None = None
    """Limit of tokens for one tool result (default: a share of the free window)."""
    long_results: Literal["cut", "refuse"] = "cut"
    """Action for a longer result: `cut` its middle, or `refuse` it and pass on only its id."""
    reasoning_enabled: bool = True
    """Broadcast the model's reasoning."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Log level."""


class WrittenAgentSettings(AgentSettings):
    """The same settings as a file spells them.

    A file may name the variable of the API key. It may also hold keys of the TypeScript agent that have no effect
    here: they are accepted so that its files load, and `IGNORED_KEYS` gives the reasons for the notices.
    """

    api_key_env: str | None = None
    """Environment variable that holds the API key."""
    mock_llm: Any = Field(default=None, deprecated="set `base_url` to a built-in model to run without a provider")
    prompts: Any = Field(
        default=None, deprecated="the prompts of the single steps are fixed; set `system_prompt` instead"
    )
    chat_response: Any = Field(
        default=None,
        deprecated="an agent answers chats that are addressed to it or mention it; for chats to everyone set"
        " `answer_broadcasts`",
    )
    message_queue: Any = Field(
        default=None,
        deprecated="chats that arrive while an agent is busy are acknowledged, queued and answered in turn",
    )
    request_timeout: Any = Field(default=None, deprecated="model calls have timeouts of their own")
    request_timeout_seconds: Any = Field(default=None, deprecated="model calls have timeouts of their own")

    def given(self) -> dict[str, Any]:
        """Return the given keys as JSON values. An API key of the summariser is in plain text."""
        values = self.model_dump(mode="json", exclude_unset=True)
        if self.summariser is not None and self.summariser.api_key is not None:
            values["summariser"]["api_key"] = self.summariser.api_key.get_secret_value()
        return values


IGNORED_KEYS: Final[dict[str, str]] = {
    key: str(field.deprecated) for key, field in WrittenAgentSettings.model_fields.items() if field.deprecated
}
"""Keys that are accepted without effect, with the reason."""
