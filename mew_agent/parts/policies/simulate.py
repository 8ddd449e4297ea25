"""`mew context simulate`: replays a log of context sizes through a policy.

Reads the log and prints the outcome of the simulation. Knows no rule of any policy.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from mew_board.figures import figure

from mew_agent.cli.app import terminal
from mew_agent.cli.app.options import OUTPUT, option
from mew_agent.config.agent_config import load_policy
from mew_agent.config.policy_choice import refuse_wrong_settings
from mew_agent.context import policy as policies
from mew_agent.context.policy import Action, Policy
from mew_agent.context.policy.threshold import whole_count
from mew_agent.context.window import DEFAULT_WINDOW_TOKENS
from mew_agent.errors import ConfigError
from mew_agent.parts.policies.log_steps import BadStep, read_step
from mew_agent.parts.policies.simulation import Simulation, StepOutcome, action_json

_FIGURES = "{:>6}  {:<10}  {:<9}  {:>10}  {:>10}  {:>5}"
_HEAD = _FIGURES.format("STEP", "LEVEL", "BASIS", "USED", "OF", "FULL")
_ACTIONS_INDENT = " " * 8
"""Indent of actions on a separate line, where they do not fit next to the figures."""


def simulate(
    *,
    policy: Annotated[str, option("--policy NAME|FILE", "A preset, or a YAML or JSON file.")],
    limit: Annotated[int | None, option("--limit N", "Context window in tokens.", min=1)] = None,
    settings: Annotated[list[str] | None, option("--set KEY=VALUE", "Change a policy setting; repeatable.")] = None,
    source: Annotated[Path | None, option("--input FILE", "Log to read (default: standard input).")] = None,
) -> None:
    """Replay a log of context sizes through a policy.

    Reads JSON Lines, and prints the policy's actions at each step.
    """
    chosen, limit_tokens = _configured(load_policy(policy), limit, settings or ())
    simulation = Simulation(chosen, limit_tokens)
    lines = terminal.read_text(source, "--input").split("\n")
    name = "standard input" if source is None or str(source) == "-" else str(source)
    width = terminal.style_of(sys.stdout).width
    if not OUTPUT.is_json:
        terminal.print_line(_beside(_HEAD, "ACTIONS", width))
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            outcome = simulation.play(read_step(line))
        except BadStep as error:
            raise ConfigError(f"{name}, line {number}", str(error)) from None
        if OUTPUT.is_json:
            terminal.print_json(outcome.as_json())
        else:
            terminal.print_line(_row(outcome, width))


def _configured(policy: Policy, limit: int | None, given: Iterable[str]) -> tuple[Policy, int | None]:
    """Return the policy with its settings, and the context window in tokens. Raises `ConfigError`."""
    texts = dict(_setting(text) for text in given)
    if policy.scope is not None:
        _check_provider(policy, texts.pop("provider", None), texts.pop("scope", None))
    refuse_wrong_settings(policy, dict.fromkeys(texts, 1), "--set")
    values = {key: _number(key, text) for key, text in texts.items()}
    for key, value in values.items():
        if whole_count(value) is None:
            terminal.warn(f"--set: {key}={texts[key]} is not a whole number of 1 or more; using the default")
    own = policy.limit_from(values)
    if limit is not None and own not in (None, limit):
        terminal.warn(f"--limit {limit:,} overrides the {own:,} of --set")
    limit_tokens = limit if limit is not None else own
    if limit_tokens is None:
        limit_tokens = _window_without_limit(policy)
    return policy.configured(policy.with_canonical_names(values)), limit_tokens


def _window_without_limit(policy: Policy) -> int | None:
    """Return the window that a policy assumes, with a warning. Raises `ConfigError` if the policy needs a known
    window.
    """
    match policy.limit_missing:
        case "error":
            raise ConfigError("--limit", f"is missing; policy '{policy.name}' needs a known context window")
        case "assume":
            terminal.warn(f"no --limit; assuming a context window of {DEFAULT_WINDOW_TOKENS:,} tokens")
            return DEFAULT_WINDOW_TOKENS
        case _:
            terminal.warn(f"no --limit; without a context window {policy.name} has no levels and does nothing")
            return None


def _check_provider(policy: Policy, provider: str | None, scope: str | None) -> None:
    if scope not in (None, "any"):
        raise ConfigError("--set", f"scope is {scope!r}", "any")
    anywhere: Literal["any"] | None = "any" if scope else None
    refusal = policy.refuses_provider(provider, anywhere) if provider else None
    if refusal:
        raise ConfigError("--set provider", refusal)


def _setting(text: str) -> tuple[str, str]:
    key, mark, value = text.partition("=")
    if not mark or not key.strip():
        raise ConfigError("--set", f"{text!r} has no value", "KEY=VALUE")
    return key.strip(), value.strip()


def _number(key: str, text: str) -> float:
    for read in (int, float):
        try:
            return read(text.replace("_", ""))
        except ValueError:
            continue
    raise ConfigError("--set", f"{key} is {text!r}", "a number")


def _row(outcome: StepOutcome, width: int) -> str:
    used, limit = outcome.used_tokens, outcome.limit_tokens
    full = "" if used is None or limit is None else f"{used * 100 // limit}%"
    figures = _FIGURES.format(outcome.step, outcome.level, outcome.basis, figure(used), figure(limit), full)
    words = [_words(action) for action in outcome.actions]
    if outcome.freed is not None:
        words.insert(0, "dropped {1:,} messages ({0:,} tokens)".format(*outcome.freed))
    return _beside(figures, ", ".join(words), width)


def _beside(figures: str, actions: str, width: int) -> str:
    """Return figures and actions in one line; in two lines if it is too long."""
    row = f"{figures}  {actions}".rstrip()
    return row if len(row) <= width or not actions else f"{figures.rstrip()}\n{_ACTIONS_INDENT}{actions}"


def _words(action: Action) -> str:
    match action:
        case policies.AnnounceAction("near_limit"):
            return "announce near_limit"
        case policies.CompactAction():
            return f"compact to {action.target_tokens:,}"
        case policies.InjectAction():
            left = "" if action.remaining is None else f" ({action.remaining} left)"
            return f"inject {action.level} prompt{left}"
        case policies.StopAction("error", reason):
            return f"error: {reason}"
        case policies.StopAction(how, reason):
            return f"{how} ({reason})"
        case policies.RestartAction():
            return f"restart ({action.attempt} of {action.most})"
        case policies.AnnounceAction("state_changed", before, after):
            return f"{before} -> {after}"
        case policies.SuggestAction():
            suggestion = action.suggestion
            return f"suggest: {suggestion.text} (saves {suggestion.tokens_saved:,}, {suggestion.impact} impact)"
        case _:
            return str(action_json(action)["type"]).replace("_", " ")
