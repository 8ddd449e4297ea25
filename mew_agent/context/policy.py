"""[pure] When to warn and when to compact: a policy is data, a decision is a function of it.

Owns levels, rules and the decision `(policy, state, snapshot, phase) -> (state, actions)`. Thresholds are exact
fractions or tokens and are compared as integers. It knows no conversation, clock or model; it never acts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, assert_never

from pydantic import BaseModel, ConfigDict, Field, model_validator

from protocol.context_report import Basis, Measure, UnknownReason

Phase = Literal["pre_request", "after_call"]
Figure = Literal["used", "resent", "next_prompt", "next_prompt_and_reserve"]
"""What a condition looks at, in tokens: the policy's measure of the last call; the same without reasoning that is
never sent again; the next prompt; the next prompt and room for its answer."""

Operator = Literal["ge", "gt"]
Known = Literal["reported_or_projected", "unavailable"]

OUTPUT_RESERVE_MAX_TOKENS = 4096
OUTPUT_RESERVE_FRACTION = (1, 20)


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Fraction(_Data):
    """An exact part of the window."""

    numerator: int = Field(gt=0)
    denominator: int = Field(gt=0)

    def of(self, tokens: int) -> int:
        """The part of so many tokens, rounded down."""
        return tokens * self.numerator // self.denominator

    def ceil_of(self, tokens: int) -> int:
        """The part of so many tokens, rounded up: the first integer at or above it."""
        return -(-tokens * self.numerator // self.denominator)

    def is_above(self, other: "Fraction") -> bool:
        """Whether it is the larger part."""
        return self.numerator * other.denominator > other.numerator * self.denominator


_WHOLE = Fraction(numerator=1, denominator=1)


class Condition(_Data):
    """`figure` `op` (`fraction` of the window, or `tokens`)."""

    figure: Figure
    op: Operator
    fraction: Fraction | None = None
    tokens: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _one_bound(self) -> "Condition":
        if (self.fraction is None) == (self.tokens is None):
            raise ValueError("a condition needs exactly one of `fraction` and `tokens`")
        return self

    def holds(self, value: int | None, limit_tokens: int | None) -> bool:
        """Whether it holds; a figure or limit that is not known never makes it hold."""
        if value is None:
            return False
        if self.tokens is not None:
            return value >= self.tokens if self.op == "ge" else value > self.tokens
        if limit_tokens is None or self.fraction is None:
            return False
        left, right = value * self.fraction.denominator, limit_tokens * self.fraction.numerator
        return left >= right if self.op == "ge" else left > right

    def first_tokens(self, limit_tokens: int | None) -> int | None:
        """The smallest figure at which it holds."""
        if self.tokens is not None:
            return self.tokens + (self.op == "gt")
        if limit_tokens is None or self.fraction is None:
            return None
        return self.fraction.ceil_of(limit_tokens) if self.op == "ge" else self.fraction.of(limit_tokens) + 1


def _begins_above(condition: Condition, other: Condition) -> bool:
    """Whether it begins to hold later than the other; conditions that cannot be compared may."""
    if condition.figure != other.figure:
        return True
    if condition.fraction is not None and other.fraction is not None:
        if condition.fraction.is_above(other.fraction):
            return True
        return not other.fraction.is_above(condition.fraction) and (condition.op, other.op) == ("gt", "ge")
    if condition.tokens is not None and other.tokens is not None:
        return condition.tokens + (condition.op == "gt") > other.tokens + (other.op == "gt")
    return True


class Level(_Data):
    """A named state of fullness. `severity` 0-3 lets every reader colour it."""

    name: str
    severity: int = Field(ge=0, le=3)
    at: Condition


class NearLimitRule(_Data):
    """Announce a crossing once; re-armed below `rearm_below`; at most one announcement per `cooldown_seconds`."""

    action: Literal["near_limit"] = "near_limit"
    phase: Phase = "after_call"
    when: tuple[Condition, ...] = Field(min_length=1)
    cooldown_seconds: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    rearm_below: Fraction


class CompactRule(_Data):
    """Compact to `target` when all conditions hold. `known` says which basis of the figures the rule is for."""

    action: Literal["compact"] = "compact"
    phase: Phase
    when: tuple[Condition, ...] = Field(min_length=1)
    trigger: str
    target: Fraction
    known: Known = "reported_or_projected"


Rule = NearLimitRule | CompactRule


class Policy(_Data):
    """A policy as data. Levels are ordered from mild to severe; the last that holds is the level."""

    name: str
    measure: Measure = "total"
    healthy: str = "healthy"
    levels: tuple[Level, ...] = ()
    rules: tuple[Rule, ...] = ()
    ceiling: Fraction = Fraction(numerator=7, denominator=10)
    """A self-compaction that cannot get below this part of the window made no progress."""
    max_stalls: int = Field(default=2, ge=1)

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> "Policy":
        names = [level.name for level in self.levels]
        if len(set(names)) != len(names) or self.healthy in names:
            raise ValueError(f"levels must have names of their own, got {[self.healthy, *names]}")
        severities = [level.severity for level in self.levels]
        if severities != sorted(severities):
            raise ValueError("levels must be ordered from mild to severe")
        for milder, level in pairwise(self.levels):
            if not _begins_above(level.at, milder.at):
                raise ValueError(f"level '{milder.name}' can never be seen: '{level.name}' begins at or below it")
        for rule in self.rules:
            self._refuse_rule(rule)
        if self.measure == "cumulative" and any(c.fraction and c.figure in ("used", "resent") for c in self._all_when):
            raise ValueError("a cumulative figure cannot be compared with a part of the window")
        return self

    @property
    def _all_when(self) -> tuple[Condition, ...]:
        return (*(level.at for level in self.levels), *(c for rule in self.rules for c in rule.when))

    def _refuse_rule(self, rule: Rule) -> None:
        used = [c.fraction for c in rule.when if c.fraction is not None and c.figure in ("used", "resent")]
        if isinstance(rule, NearLimitRule):
            if any(rule.rearm_below.is_above(fraction) for fraction in used):
                raise ValueError("near_limit is armed again above the place where it is announced")
            return
        if rule.target.is_above(_WHOLE):
            raise ValueError(f"rule '{rule.trigger}' aims above the whole window")
        if rule.target.is_above(self.ceiling):
            raise ValueError(f"rule '{rule.trigger}' aims above the policy's ceiling, so that it never makes progress")
        if any(not fraction.is_above(rule.target) for fraction in used):
            raise ValueError(f"rule '{rule.trigger}' compacts to where it compacts again")
        if rule.known == "unavailable" and any(c.figure in ("used", "resent") for c in rule.when):
            raise ValueError(f"rule '{rule.trigger}' is for calls without usage, and looks at their usage")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a decision looks at. All figures in tokens, None when not known."""

    used_tokens: int | None
    basis: Basis
    limit_tokens: int | None
    reason: UnknownReason | None = None
    hidden_tokens: int = 0
    next_prompt_tokens: int | None = None
    at_seconds: float = 0.0

    def figure(self, name: Figure) -> int | None:
        """The value of a figure; None when it cannot be told."""
        match name:
            case "used":
                return self.used_tokens
            case "resent":
                return None if self.used_tokens is None else self.used_tokens - self.hidden_tokens
            case "next_prompt":
                return self.next_prompt_tokens
            case "next_prompt_and_reserve":
                if self.next_prompt_tokens is None or self.limit_tokens is None:
                    return None
                return self.next_prompt_tokens + output_reserve_tokens(self.limit_tokens)
            case _:
                assert_never(name)


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What a policy remembers between decisions. Persisted, so a restart does not warn twice."""

    armed: bool = True
    announced_at_seconds: float | None = None
    stalls: int = 0


@dataclass(frozen=True, slots=True)
class AnnounceNearLimit:
    """Tell everybody once that the window is nearly full."""


@dataclass(frozen=True, slots=True)
class Compact:
    """Compact now. `target_tokens` is what should remain at most, `ceiling_tokens` what must."""

    trigger: str
    target_tokens: int
    ceiling_tokens: int


Action = AnnounceNearLimit | Compact


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome: the state to keep, and what to do, in order."""

    state: PolicyState
    actions: tuple[Action, ...] = field(default=())


def output_reserve_tokens(limit_tokens: int) -> int:
    """Room kept free for an answer."""
    numerator, denominator = OUTPUT_RESERVE_FRACTION
    return min(OUTPUT_RESERVE_MAX_TOKENS, limit_tokens * numerator // denominator)


def level_of(policy: Policy, snapshot: Snapshot) -> tuple[str, int | None]:
    """The level's name and severity; ("unknown", None) when it cannot be told."""
    if snapshot.used_tokens is None or snapshot.limit_tokens is None:
        return "unknown", None
    name, severity = policy.healthy, 0
    for level in policy.levels:
        if level.at.holds(snapshot.figure(level.at.figure), snapshot.limit_tokens):
            name, severity = level.name, level.severity
    return name, severity


def compact_at_tokens(policy: Policy, limit_tokens: int | None) -> int | None:
    """Where an agent under this policy compacts by itself after a call; None if it never does."""
    found = [
        tokens
        for rule in policy.rules
        if isinstance(rule, CompactRule) and rule.phase == "after_call"
        for condition in rule.when
        if condition.figure == "used" and (tokens := condition.first_tokens(limit_tokens)) is not None
    ]
    return min(found) if found else None


def decide(policy: Policy, state: PolicyState, snapshot: Snapshot, phase: Phase) -> Decision:
    """What to do now. Announcements come before compactions; at most one compaction, of the first rule that holds.

    Compactions that did not help stop the compacting, until a call is below every threshold again.
    """
    state, announced = _announcements(policy, state, snapshot, phase)
    actions: list[Action] = [*announced]
    rule = _compaction_due(policy, snapshot, phase)
    if rule is not None and not is_stalled(policy, state):
        limit = snapshot.limit_tokens or 0
        actions.append(Compact(rule.trigger, rule.target.of(limit), policy.ceiling.of(limit)))
    if rule is None and phase == "after_call" and _is_a_low_call(policy, snapshot):
        state = replace(state, stalls=0)
    return Decision(state, tuple(actions))


def after_compaction(state: PolicyState, *, progressed: bool, at_seconds: float) -> PolicyState:
    """Note a finished compaction: it counts for the cooldown, and two without progress stop the loop."""
    return replace(state, announced_at_seconds=at_seconds, stalls=0 if progressed else state.stalls + 1)


def is_stalled(policy: Policy, state: PolicyState) -> bool:
    """Whether self-compaction has given up because it does not help."""
    return state.stalls >= policy.max_stalls


def _is_a_low_call(policy: Policy, snapshot: Snapshot) -> bool:
    """Whether the figures are those of a call, below every level; those of a restart or a cut show nothing new."""
    if snapshot.basis == "reported":
        return level_of(policy, snapshot)[0] == policy.healthy
    return snapshot.reason == "usage_unavailable"


def _compaction_due(policy: Policy, snapshot: Snapshot, phase: Phase) -> CompactRule | None:
    for rule in policy.rules:
        if isinstance(rule, CompactRule) and rule.phase == phase and _applies(rule, snapshot):
            return rule
    return None


def _announcements(
    policy: Policy, state: PolicyState, snapshot: Snapshot, phase: Phase
) -> tuple[PolicyState, list[AnnounceNearLimit]]:
    announced: list[AnnounceNearLimit] = []
    for rule in policy.rules:
        if not isinstance(rule, NearLimitRule) or rule.phase != phase or snapshot.used_tokens is None:
            continue
        below = Condition(figure="used", op="ge", fraction=rule.rearm_below)
        if snapshot.limit_tokens is not None and not below.holds(snapshot.used_tokens, snapshot.limit_tokens):
            state = replace(state, armed=True)
        if state.armed and _has_cooled(rule, state, snapshot.at_seconds) and _all_hold(rule.when, snapshot):
            announced.append(AnnounceNearLimit())
            state = replace(state, armed=False, announced_at_seconds=snapshot.at_seconds)
    return state, announced


def _has_cooled(rule: NearLimitRule, state: PolicyState, at_seconds: float) -> bool:
    """Whether enough time passed. A clock that was set back must not silence us for as long as that."""
    if state.announced_at_seconds is None:
        return True
    passed_seconds = at_seconds - state.announced_at_seconds
    return passed_seconds < 0 or passed_seconds > rule.cooldown_seconds


def _applies(rule: CompactRule, snapshot: Snapshot) -> bool:
    unavailable = snapshot.basis == "unknown" and snapshot.reason == "usage_unavailable"
    if rule.phase == "after_call" and unavailable != (rule.known == "unavailable"):
        return False
    return _all_hold(rule.when, snapshot)


def _all_hold(conditions: tuple[Condition, ...], snapshot: Snapshot) -> bool:
    return all(c.holds(snapshot.figure(c.figure), snapshot.limit_tokens) for c in conditions)


_NINE_TENTHS = Fraction(numerator=9, denominator=10)
_HALF = Fraction(numerator=1, denominator=2)

MEW = Policy(
    name="mew",
    levels=(Level(name="near_limit", severity=2, at=Condition(figure="used", op="ge", fraction=_NINE_TENTHS)),),
    rules=(
        NearLimitRule(
            when=(Condition(figure="used", op="ge", fraction=_NINE_TENTHS),),
            rearm_below=Fraction(numerator=3, denominator=4),
        ),
        CompactRule(
            phase="after_call",
            trigger="threshold",
            target=_HALF,
            when=(
                Condition(figure="used", op="ge", fraction=_NINE_TENTHS),
                Condition(figure="resent", op="ge", fraction=_NINE_TENTHS),
            ),
        ),
        CompactRule(
            phase="after_call",
            trigger="threshold_projected",
            target=_HALF,
            known="unavailable",
            when=(Condition(figure="next_prompt", op="ge", fraction=_NINE_TENTHS),),
        ),
        CompactRule(
            phase="pre_request",
            trigger="would_overflow",
            target=_HALF,
            when=(Condition(figure="next_prompt_and_reserve", op="gt", fraction=_WHOLE),),
        ),
    ),
)
"""The default: at 9/10 of the window by the provider's own total, compact to half of it; before a request that
would not fit, compact first."""

PRESETS: Mapping[str, Policy] = {MEW.name: MEW}
