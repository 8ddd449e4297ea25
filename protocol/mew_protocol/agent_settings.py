"""[pure] The settings of an agent: each key, its type, bounds and default, declared once.

Owns what the `agent:` section of a space.yaml and an agent's own configuration file have in common, so that the
launcher and the agent accept the same keys. Each field's description is the text of the reference. Where values come
from and how an agent uses them is decided in `mew_agent.config`.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from mew_protocol.context_report import MAX_PIN_CHARS, MAX_PINS

REHEARSAL: Final = "rehearsal"
"""As `base_url`: the built-in rehearsal model, for trying things out without a provider."""

LOCAL: Final = "local"
"""As `base_url`: a real model on this machine. `model` is a GGUF file; without one, a small packaged model."""

DEFAULT_MODEL: Final = "gpt-4o"


def _refuse_boolean(value: object) -> object:
    """Pydantic reads `true` as 1; in a settings file it is a mistake."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def bare_off_as_text(value: object) -> object:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else value


def _checked_model_url(text: str) -> str:
    if text in (REHEARSAL, LOCAL) or re.match(r"https?://[^/]", text):
        return text
    raise ValueError(f"must be a URL like http://127.0.0.1:1234/v1, '{REHEARSAL}' or '{LOCAL}'")


Count = Annotated[int, BeforeValidator(_refuse_boolean)]
Positive = Annotated[Count, Field(gt=0)]
Seconds = Annotated[float, BeforeValidator(_refuse_boolean), Field(gt=0, allow_inf_nan=False)]
Price = Annotated[float, BeforeValidator(_refuse_boolean), Field(ge=0, allow_inf_nan=False)]
Number = Annotated[float, BeforeValidator(_refuse_boolean)]
PartOfWindow = Annotated[str, Field(pattern=r"^\s*[0-9]+\s*(%|/\s*[1-9][0-9]*)\s*$")]
ModelUrl = Annotated[str, AfterValidator(_checked_model_url)]
PinText = Annotated[str, Field(min_length=1, max_length=MAX_PIN_CHARS)]
TokenizerChoice = Literal["auto", "off", "gpt", "mistral", "llama2", "llama3"]


class _Settings(BaseModel):
    """A mapping of settings. A key without a value counts as not given."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _without_empty_keys(cls, given: object) -> object:
        return {key: value for key, value in given.items() if value is not None} if isinstance(given, dict) else given


class ModelPrice(_Settings):
    """What a model's provider charges for a million tokens."""

    input: Price = Field(description="Price of a million prompt tokens.")
    cached_input: Price | None = Field(
        default=None, description="Price of a million prompt tokens that are read from the cache (default: `input`)."
    )
    output: Price = Field(description="Price of a million output tokens.")
    currency: str = Field(min_length=1, description="Name of the currency, as it is shown.")


class ModelFacts(_Settings):
    """Properties of a model, by its name under `models:`."""

    context_length: Positive | None = Field(default=None, description="Context window in tokens.")
    input_length: Positive | None = Field(
        default=None, description="Longest prompt in tokens; used when `context_length` is not given."
    )
    optimal_max_tokens: Positive | None = Field(
        default=None, description="Prompt size in tokens up to which the Dominds policies report `healthy`."
    )
    critical_max_tokens: Positive | None = Field(
        default=None, description="Prompt size in tokens from which the Dominds policies report `critical`."
    )
    caution_remediation_cadence_generations: Positive | None = Field(
        default=None, description="Generations between two recovery prompts at `caution`."
    )
    caution_cadence_generations: Positive | None = Field(
        default=None, description="Older name of `caution_remediation_cadence_generations`."
    )
    withhold_tool_results_above_bytes: Positive | None = Field(
        default=None, description="Size in bytes above which a policy may withhold a tool result at high levels."
    )
    price: ModelPrice | None = Field(
        default=None, description="What the provider charges; reports of compactions then show their cost in money."
    )


class Summariser(_Settings):
    """The model that writes summaries. Without `base_url` it is on the agent's own server and uses its API key."""

    model: str = Field(min_length=1, description="Model name.")
    base_url: ModelUrl | None = Field(default=None, description="URL of its server (default: the agent's).")
    api_key: SecretStr | None = Field(default=None, description="API key of its server.")
    api_key_env: str | None = Field(default=None, description="Environment variable that holds the API key.")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, given: object) -> object:
        return {"model": given} if isinstance(given, str) else given


class LoopLimits(_Settings):
    """When an agent stops answering another agent, until a person or a program sends a chat."""

    hops: Positive = Field(
        default=8, description="Messages between agents in a thread since the last one from a person or a program."
    )
    exchanges_per_minute: Positive = Field(default=30, description="Answers to one agent within a minute.")


class CompactionSettings(_Settings):
    """Who is asked before the agent compacts."""

    approve: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        min_length=1, description="Participant that may approve, change or reject a compaction, or a list of them."
    )
    wait_seconds: Annotated[Seconds, Field(le=86_400)] = Field(
        default=60.0, description="Time to decide; without a decision the compaction runs."
    )

    @field_validator("approve", mode="before")
    @classmethod
    def _one_as_list(cls, given: object) -> object:
        return (given,) if isinstance(given, str) else given


class AgentSettings(_Settings):
    """What an agent runs with, apart from its identity, its API key and its store."""

    name: str | None = Field(default=None, description="Name shown to others (default: the participant id).")
    model: str = Field(
        default=DEFAULT_MODEL, min_length=1, description="Model to call; with `base_url: local` a GGUF file."
    )
    base_url: ModelUrl | None = Field(
        default=None,
        description=f"URL of an OpenAI-compatible server (default: OpenAI); `{REHEARSAL}` uses the built-in model,"
        f" `{LOCAL}` a GGUF file on this machine.",
    )
    system_prompt: str | None = Field(default=None, description="System prompt (default: a short general one).")
    pins: tuple[PinText, ...] = Field(
        default=(),
        max_length=MAX_PINS,
        description="Texts that stay verbatim in every prompt, such as safety rules.",
    )
    pin_tools: bool = Field(default=False, description="Offer the model tools to pin and unpin texts.")
    context_token_limit: Positive | None = Field(
        default=None,
        description="Context window in tokens (default: ask the model's server; 128,000 if it does not report one).",
    )
    policy: str | dict[str, Any] = Field(
        default="mew",
        description="Context policy: a preset's name, a file (relative to this file), or a policy written inline.",
    )
    policy_settings: dict[str, Number] = Field(
        default_factory=dict, description="Settings of the policy; they override those from `models`."
    )
    policy_scope: Literal["any"] | None = Field(
        default=None, description="`any` allows a policy for one provider to run with another."
    )
    provider: str | None = Field(
        default=None, description="Provider of the model, for policies that apply to one provider."
    )
    compaction: CompactionSettings | None = Field(
        default=None, description="Ask a participant before compacting (default: compact without asking)."
    )
    compact_at: PartOfWindow | None = Field(
        default=None,
        description="Part of the window, such as `75%` or `3/4`, at which the agent compacts after a call (default: the"
        " policy's; for `mew` 9/10).",
    )
    compact_early: bool = Field(
        default=True,
        description="Compact at the end of a task if the next one of the usual size would not fit (policy `mew`).",
    )
    measure_compactions: bool = Field(
        default=False,
        description="Measure what a compaction frees with two or three model calls of one token if the server cannot"
        " count prompts.",
    )
    max_compacting: Positive | None = Field(
        default=None,
        description="Number of agents of the space that may compact at the same time; further ones wait while they have"
        " room (default: half of the agents, at least one).",
    )
    summariser: Summariser | None = Field(
        default=None,
        description="Model that writes summaries: a name, or `model`, `base_url` and `api_key_env`"
        " (default: the policy's, else the agent's own model).",
    )
    summary_timeout_seconds: Seconds = Field(
        default=60.0,
        description="Timeout for writing one summary, plus 1 second for each 1,000 tokens that it replaces.",
    )
    reminders: bool | None = Field(
        default=None, description="Offer the model tools for reminders (default: if the policy uses reminders)."
    )
    upkeep: bool = Field(default=True, description="Let the model tidy its context while no question waits.")
    tokenizer: Annotated[TokenizerChoice, BeforeValidator(bare_off_as_text)] = Field(
        default="auto",
        description="Tokenizer for exact counts: a family, `auto` to choose by the model's name if one is installed,"
        " or `off`.",
    )
    tokenizer_file: Path | None = Field(
        default=None, description="Vocabulary of the tokenizer, if its extra includes none (relative to this file)."
    )
    conversation_history_length: Annotated[Count, Field(ge=0)] | None = Field(
        default=None, description="Number of newest history items sent to the model (default: all)."
    )
    auto_respond: bool = Field(default=True, description="Answer chats.")
    answer_broadcasts: Literal["rules", "model", "never"] = Field(
        default="rules",
        description="Which chats without an addressee to answer: those with a question mark (`rules`), those the model"
        " judges to be for it (`model`), or none (`never`).",
    )
    loop_limits: LoopLimits = Field(
        default_factory=LoopLimits,
        description="Limits of conversations between agents without a person; beyond them, chats wait.",
    )
    max_iterations: Positive = Field(default=10, description="Limit of model calls for one answer.")
    max_turn_seconds: Seconds = Field(default=1800.0, description="Timeout for one answer, pauses included.")
    max_question_age_seconds: Seconds = Field(
        default=3600.0,
        description="Age above which a question from before a restart is declined in one sentence.",
    )
    max_sessions: int = Field(
        default=16,
        ge=1,
        le=64,
        description="Sessions kept apart for clients of `mew serve`; the least recently used one is deleted first.",
    )
    store_max_days: Positive | None = Field(
        default=None,
        description="Age in days above which what has left the context is removed from the session file, or from"
        " memory (default: keep).",
    )
    store_max_megabytes: Positive = Field(
        default=256,
        description="Size above which the oldest of what has left the context is removed from the session file, or"
        " from memory.",
    )
    store_max_compactions: Positive = Field(
        default=100, description="Number of compactions that can be listed and undone; older ones are dropped."
    )
    tool_timeout_seconds: Seconds = Field(default=300.0, description="Timeout for the agent's own tools.")
    peer_timeout_seconds: Seconds = Field(default=60.0, description="Timeout for a peer's answer.")
    proposal_timeout_seconds: Seconds = Field(default=300.0, description="Timeout for a proposal to be fulfilled.")
    discover_tools: bool = Field(default=True, description="Ask peers for their tools on joining.")
    board_tools: bool = Field(
        default=True, description="Offer the model tools that read other agents' context and ask them to compact."
    )
    context_line: bool = Field(default=False, description="Put the agent's own context figures before each question.")
    max_result_tokens: Positive | None = Field(
        default=None, description="Limit of tokens for one tool result (default: a share of the free window)."
    )
    long_results: Literal["cut", "refuse"] = Field(
        default="cut",
        description="What to do with a longer result: `cut` its middle, or `refuse` it and pass on only its id.",
    )
    reasoning_enabled: bool = Field(default=True, description="Broadcast the model's reasoning.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Log level.")


class WrittenAgentSettings(AgentSettings):
    """The same settings as a file spells them.

    A file may name the variable of the API key. It may also hold keys of the TypeScript agent that have no effect
    here: they are accepted so that its files load, and `IGNORED_KEYS` gives the reasons for the notices.
    """

    api_key_env: str | None = Field(default=None, description="Environment variable that holds the API key.")
    mock_llm: Any = Field(default=None, deprecated=f"use `base_url: {REHEARSAL}` to run without a provider")
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
        """The keys that were given, as values for JSON. An API key of the summariser is in plain text."""
        values = self.model_dump(mode="json", exclude_unset=True)
        if self.summariser is not None and self.summariser.api_key is not None:
            values["summariser"]["api_key"] = self.summariser.api_key.get_secret_value()
        return values


OTHER_NAMES: Final = dict.fromkeys(
    (
        *("context_window", "context_window_tokens", "context_length", "context_limit", "context_size"),
        *("window", "window_tokens", "max_context_tokens", "max_tokens", "n_ctx", "num_ctx", "token_limit"),
    ),
    "context_token_limit",
)
"""What other programs call a key, for the hint in an error."""

IGNORED_KEYS: Final[dict[str, str]] = {
    key: str(field.deprecated) for key, field in WrittenAgentSettings.model_fields.items() if field.deprecated
}
"""Keys that are accepted without effect, with the reason."""
