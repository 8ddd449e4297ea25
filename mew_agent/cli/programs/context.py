"""`mew context`: what a policy makes of a context log.

Reads the log line by line and prints what the simulation says; knows no rule of any policy.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, assert_never

import typer

from mew_agent.cli.app.options import help_when_alone

if TYPE_CHECKING:
    from mew_agent.context.policy import Action, Policy
    from mew_agent.context.simulation import StepOutcome

app = typer.Typer(
    help="Try out how policies deal with a context.", invoke_without_command=True, callback=help_when_alone
)

_FIGURES = "{:>6}  {:<10}  {:<9}  {:>10}  {:>10}  {:>5}"
_HEAD = _FIGURES.format("STEP", "LEVEL", "BASIS", "USED", "OF", "FULL")
_BEFORE_ACTIONS = " " * 8
"""Where the actions stand in a line of their own, if they do not fit beside the figures."""


@app.command(short_help="Replay a log of context sizes through a policy.")
def simulate(
    *,
    policy: Annotated[str, typer.Option("--policy", metavar="NAME|FILE", help="A preset, or a YAML or JSON file.")],
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="The context window in tokens.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the policy; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON Lines: one object per step.")] = False,
    source: Annotated[Path | None, typer.Option("--input", metavar="FILE", help="Else standard input.")] = None,
) -> None:
    """Replay a log of context sizes (JSON Lines) through a policy and print what it would have done at each step."""
    import json
    import sys

    from mew_agent.cli.app import terminal
    from mew_agent.config.agent_config import load_policy
    from mew_agent.context.log_steps import BadStep, read_step
    from mew_agent.context.simulation import Simulation
    from mew_agent.errors import ConfigError

    chosen, limit_tokens = _configured(load_policy(policy), limit, settings or ())
    simulation = Simulation(chosen, limit_tokens)
    with _lines_of(source) as (name, lines):
        width = terminal.look(sys.stdout).width
        if not as_json:
            terminal.say(_beside(_HEAD, "ACTIONS", width))
        for number, line in lines:
            try:
                outcome = simulation.play(read_step(line))
            except BadStep as error:
                raise ConfigError(f"{name}, line {number}", str(error)) from None
            if as_json:
                # ASCII as it is: nothing in it could be for a terminal.
                terminal.say_lines([json.dumps(outcome.as_json())])
            else:
                terminal.say(_row(outcome, width))


def _configured(policy: "Policy", limit: int | None, given: Iterable[str]) -> "tuple[Policy, int | None]":
    """The policy with its settings, and the window it works with. Raises `ConfigError`."""
    from mew_agent.cli.app import terminal
    from mew_agent.config.policy_choice import refuse_wrong_settings
    from mew_agent.context.policy.threshold import whole_count
    from mew_agent.context.window import DEFAULT_WINDOW_TOKENS
    from mew_agent.errors import ConfigError

    texts = dict(_setting(text) for text in given)
    if policy.scope is not None:
        _check_provider(policy, texts.pop("provider", None), texts.pop("scope", None))
    refuse_wrong_settings(policy, dict.fromkeys(texts, 1), "--set")
    values = {key: _number(key, text) for key, text in texts.items()}
    for key, value in values.items():
        if whole_count(value) is None:
            terminal.warn(f"--set: {key}={texts[key]} is no count of 1 or more; the default stands")
    told = policy.limit_from(values)
    if limit is not None and told not in (None, limit):
        terminal.warn(f"--limit {limit:,} stands above the {told:,} of --set")
    limit_tokens = limit if limit is not None else told
    if limit_tokens is None and policy.limit_missing == "error":
        raise ConfigError("--limit", f"is missing: policy '{policy.name}' cannot work without a known context window")
    if limit_tokens is None and policy.limit_missing == "assume":
        limit_tokens = DEFAULT_WINDOW_TOKENS
        terminal.warn(f"no --limit: a context window of {limit_tokens:,} tokens is assumed")
    if limit_tokens is None:
        terminal.warn(f"no --limit: without a context window {policy.name} knows no level and does nothing")
    return policy.configured(policy.with_canonical_names(values)), limit_tokens


def _check_provider(policy: "Policy", provider: str | None, scope: str | None) -> None:
    from mew_agent.errors import ConfigError

    if scope not in (None, "any"):
        raise ConfigError("--set", f"scope is {scope!r}", "any")
    anywhere: Literal["any"] | None = "any" if scope else None
    refusal = policy.refuses_provider(provider, anywhere) if provider else None
    if refusal:
        raise ConfigError("--set provider", refusal)


def _setting(text: str) -> tuple[str, str]:
    from mew_agent.errors import ConfigError

    key, mark, value = text.partition("=")
    if not mark or not key.strip():
        raise ConfigError("--set", f"{text!r} sets nothing", "KEY=VALUE")
    return key.strip(), value.strip()


def _number(key: str, text: str) -> float:
    from mew_agent.errors import ConfigError

    for read in (int, float):
        try:
            return read(text.replace("_", ""))
        except ValueError:
            continue
    raise ConfigError("--set", f"{key} is {text!r}", "a number")


@contextmanager
def _lines_of(source: Path | None) -> Iterator[tuple[str, Iterator[tuple[int, str]]]]:
    """The log's name, and its lines that are not empty with their numbers. Raises `ConfigError`."""
    import sys

    from mew_agent.errors import ConfigError

    def numbered(stream: TextIO, name: str) -> Iterator[tuple[int, str]]:
        number = 0
        try:
            for number, line in enumerate(stream, 1):
                if number == 1:
                    line = line.removeprefix("\ufeff")
                if line.strip():
                    yield number, line
        except UnicodeDecodeError:
            raise ConfigError(f"{name}, line {number + 1}", "is no UTF-8 text") from None

    if source is None or str(source) == "-":
        yield "standard input", numbered(sys.stdin, "standard input")
        return
    try:
        stream = source.open(encoding="utf-8")
    except OSError as error:
        raise ConfigError("--input", f"{source} cannot be read: {error.strerror or error}") from None
    with stream:
        yield str(source), numbered(stream, str(source))


def _row(outcome: "StepOutcome", width: int) -> str:
    used, limit = outcome.used_tokens, outcome.limit_tokens
    full = "" if used is None or limit is None else f"{used * 100 // limit}%"
    figures = _FIGURES.format(outcome.step, outcome.level, outcome.basis, _shown(used), _shown(limit), full)
    return _beside(figures, ", ".join(_words(action) for action in outcome.actions), width)


def _beside(figures: str, said: str, width: int) -> str:
    """What is said stands beside the figures, or below them where a line is not that wide."""
    row = f"{figures}  {said}".rstrip()
    return row if len(row) <= width or not said else f"{figures.rstrip()}\n{_BEFORE_ACTIONS}{said}"


def _shown(tokens: int | None) -> str:
    return "?" if tokens is None else f"{tokens:,}"


def _words(action: "Action") -> str:
    from mew_agent.context import policy

    match action:
        case policy.NearLimitAction():
            return "announce near_limit"
        case policy.CompactAction():
            return f"compact to {action.target_tokens:,}"
        case policy.InjectAction():
            left = "" if action.remaining is None else f" ({action.remaining} left)"
            return f"inject {action.level} prompt{left}"
        case policy.ClearAction() | policy.AbortAction():
            return f"{policy.action_json(action)['type']} ({action.reason})"
        case policy.RestartAction():
            return f"restart ({action.attempt} of {action.most})"
        case policy.ErrorAction():
            return f"error: {action.problem}"
        case policy.StateChangedAction():
            return f"{action.before} -> {action.after}"
        case policy.SuggestAction():
            suggestion = action.suggestion
            return f"suggest: {suggestion.text} (saves {suggestion.tokens_saved:,}, {suggestion.impact} impact)"
        case (
            policy.RemindAction()
            | policy.UnremindAction()
            | policy.ApproachingRedlineAction()
            | policy.RedlinedAction()
        ):
            kind: Any = policy.action_json(action)["type"]
            return str(kind).replace("_", " ")
        case _:
            assert_never(action)
