"""[pure] The facts about a model under `models:` in space.yaml and agent files: its window, limits and price."""

from pydantic import Field

from mew_settings.values import Positive, Price, SparseSettings


class ModelPrice(SparseSettings):
    """Prices of a provider for a million tokens."""

    input: Price
    """Price of a million prompt tokens."""
    cached_input: Price | None = None
    """Price of a million prompt tokens that are read from the cache (default: `input`)."""
    output: Price
    """Price of a million output tokens."""
    currency: str = Field(min_length=1)
    """Displayed name of the currency."""


class ModelFacts(SparseSettings):
    """Properties of a model, by its name under `models:`."""

    context_length: Positive | None = None
    """Context window in tokens."""
    input_length: Positive | None = None
    """Longest prompt in tokens; used when `context_length` is not given."""
    optimal_max_tokens: Positive | None = None
    """Prompt size in tokens up to which policies with an optimal size report `healthy`."""
    critical_max_tokens: Positive | None = None
    """Prompt size in tokens above which policies with a critical size report `critical`."""
    caution_remediation_cadence_generations: Positive | None = None
    """Generations between two recovery prompts at `caution`."""
    caution_cadence_generations: Positive | None = None
    """Older name of `caution_remediation_cadence_generations`."""
    withhold_tool_results_above_bytes: Positive | None = None
    """Size in bytes above which a policy may withhold a tool result at high levels."""
    price: ModelPrice | None = None
    """Prices of the provider; reports then show the cost of compactions and of all model calls in money."""
