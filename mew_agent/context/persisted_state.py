"""[pure] State that survives a restart: calls, accounts, reminders and planned policy actions."""

from dataclasses import dataclass
from typing import Literal

from mew_protocol.context_report import Injection, LastCompaction, LastReported, Spending
from pydantic import BaseModel, ConfigDict

from mew_agent.context.history import Pin
from mew_agent.context.policy import PolicyState
from mew_agent.context.reminders import Reminder
from mew_agent.model.usage import Usage

CallRole = Literal["main", "summary", "classification", "utility"]


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One model call."""

    id: str
    role: CallRole
    at: str
    model: str
    revision: int
    usage: Usage | None = None  # None if the provider reported none
    latency_ms: int | None = None
    finish_reason: str | None = None
    failed: str | None = None  # the text of the error
    amount: float | None = None  # cost of the call; None without usage or a configured price
    currency: str | None = None
    level: str | None = None  # for main calls: the policy's level after the call
    limit_tokens: int | None = None  # for main calls: the window at that time


class PromptAnchor(BaseModel):
    """A reported prompt minus later cuts, the base of projections after a restart."""

    model_config = ConfigDict(frozen=True)

    prompt_tokens: int
    last_seq: int  # the newest item in it
    prefix_counts: tuple[float, ...]  # features of prefix and pins, see `projection`
    pins_counts: tuple[float, ...]
    model: str  # the configured model; the figure is invalid for another one


class SavedContext(BaseModel):
    """The accounts of a context. Counts are in tokens."""

    model_config = ConfigDict(frozen=True)

    last_reported: LastReported | None = None
    measured_revision: int = 0
    measured_seq: int = -1
    measured_reply_seq: int | None = None
    compactions: int = 0
    last_compaction: LastCompaction | None = None
    policy_state: PolicyState = PolicyState()
    served_model: str | None = None
    calibrations: dict[str, tuple[float, ...]] = {}
    spent_tokens: int = 0  # since the last clear
    spending: Spending | None = None
    growth: tuple[int, ...] = ()  # tokens of the recent turns
    anchor: PromptAnchor | None = None


class PersistedState(BaseModel):
    """Reminders, pins, and the pending decisions of the policy named `policy`."""

    model_config = ConfigDict(frozen=True)

    reminders: tuple[Reminder, ...] = ()
    reminders_made: int = 0
    pending_prompts: tuple[str, ...] = ()  # enter the history before the next generation
    planned_clear: str | None = None  # why the context is cleared before the next generation
    injection: Injection | None = None  # the prompt or countdown in force, as the report shows it
    policy: str | None = None
    pins: tuple[Pin, ...] = ()  # pins of participants and of the agent itself
    pins_made: int = 0
    prompts_made: int = 0  # number of main calls so far, for receipts
    shortened: tuple[int, int] | None = None  # revision and newest item of a prompt that the server shortened
