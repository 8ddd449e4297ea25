"""[pure] When to warn and when to compact: policies as data, and the engine that applies them.

This module exports what an agent needs to choose a policy and ask it for decisions.
"""

from mew_agent.context.policy.actions import (
    AbortAction,
    Action,
    ApproachingRedlineAction,
    ClearAction,
    CompactAction,
    ErrorAction,
    InjectAction,
    NearLimitAction,
    RedlinedAction,
    RemindAction,
    RestartAction,
    StateChangedAction,
    SuggestAction,
    Suggestion,
    UnremindAction,
    action_json,
)
from mew_agent.context.policy.decision import (
    Decision,
    compact_at_tokens,
    decide,
    is_stalled,
    level_of,
    withholds_tool_result,
)
from mew_agent.context.policy.definition import Policy, output_reserve_tokens
from mew_agent.context.policy.presets import DOMINDS_V1, DOMINDS_V3, LMSTUDIO, MEW, MEW_REFERENCE, PRESETS, TACHIKOMA
from mew_agent.context.policy.rules import CompactionMethod, CompactRule, Level, NearLimitRule, Phase
from mew_agent.context.policy.state import (
    NO_FLAGS,
    ContextSnapshot,
    GenerationFlags,
    PolicyState,
    after_clear,
    after_compaction,
)
from mew_agent.context.policy.threshold import Condition, Fraction

__all__ = [
    "DOMINDS_V1",
    "DOMINDS_V3",
    "LMSTUDIO",
    "MEW",
    "MEW_REFERENCE",
    "NO_FLAGS",
    "PRESETS",
    "TACHIKOMA",
    "AbortAction",
    "Action",
    "ApproachingRedlineAction",
    "ClearAction",
    "CompactAction",
    "CompactRule",
    "CompactionMethod",
    "Condition",
    "ContextSnapshot",
    "Decision",
    "ErrorAction",
    "Fraction",
    "GenerationFlags",
    "InjectAction",
    "Level",
    "NearLimitAction",
    "NearLimitRule",
    "Phase",
    "Policy",
    "PolicyState",
    "RedlinedAction",
    "RemindAction",
    "RestartAction",
    "StateChangedAction",
    "SuggestAction",
    "Suggestion",
    "UnremindAction",
    "action_json",
    "after_clear",
    "after_compaction",
    "compact_at_tokens",
    "decide",
    "is_stalled",
    "level_of",
    "output_reserve_tokens",
    "withholds_tool_result",
]
