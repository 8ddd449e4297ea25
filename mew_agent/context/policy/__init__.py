"""[pure] When to warn and when to compact: policies as data, and the engine that applies them.

Exports the names for choosing a policy and asking it for decisions.
"""

from mew_agent.context.policy.actions import Action as Action
from mew_agent.context.policy.actions import AnnounceAction as AnnounceAction
from mew_agent.context.policy.actions import CompactAction as CompactAction
from mew_agent.context.policy.actions import CompactionMethod as CompactionMethod
from mew_agent.context.policy.actions import InjectAction as InjectAction
from mew_agent.context.policy.actions import RemindAction as RemindAction
from mew_agent.context.policy.actions import RestartAction as RestartAction
from mew_agent.context.policy.actions import StopAction as StopAction
from mew_agent.context.policy.actions import SuggestAction as SuggestAction
from mew_agent.context.policy.actions import Suggestion as Suggestion
from mew_agent.context.policy.decision import Decision as Decision
from mew_agent.context.policy.decision import decide as decide
from mew_agent.context.policy.decision import is_stalled as is_stalled
from mew_agent.context.policy.decision import level_of as level_of
from mew_agent.context.policy.decision import trusted as trusted
from mew_agent.context.policy.decision import withheld_at as withheld_at
from mew_agent.context.policy.default_policy import MEW as MEW
from mew_agent.context.policy.default_policy import compacting_early as compacting_early
from mew_agent.context.policy.definition import Phase as Phase
from mew_agent.context.policy.definition import Policy as Policy
from mew_agent.context.policy.snapshot import NO_FLAGS as NO_FLAGS
from mew_agent.context.policy.snapshot import ContextSnapshot as ContextSnapshot
from mew_agent.context.policy.snapshot import GenerationFlags as GenerationFlags
from mew_agent.context.policy.snapshot import PolicyState as PolicyState
from mew_agent.context.policy.snapshot import after_clear as after_clear
from mew_agent.context.policy.snapshot import after_compaction as after_compaction
