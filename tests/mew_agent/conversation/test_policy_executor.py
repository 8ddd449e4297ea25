"""Every action a policy can decide is carried out or handed back, in order; what must outlive the process is kept."""

import typing

import pytest

from mew_agent.context.history import History
from mew_agent.context.policy import (
    DOMINDS_V1,
    DOMINDS_V3,
    MEW,
    TACHIKOMA,
    AbortAction,
    Action,
    ApproachingRedlineAction,
    ClearAction,
    CompactAction,
    ErrorAction,
    InjectAction,
    NearLimitAction,
    Policy,
    PolicyState,
    RedlinedAction,
    RemindAction,
    RestartAction,
    StateChangedAction,
    SuggestAction,
    Suggestion,
    UnremindAction,
)
from mew_agent.context.store import MemoryStore
from mew_agent.context.tracker import Tracker
from mew_agent.context.window import resolve_window
from mew_agent.conversation.events import (
    ContextEvent,
    Events,
    LevelChanged,
    RedlineApproached,
    RedlineCrossed,
    SavingSuggested,
)
from mew_agent.conversation.policy_executor import Due, Remedies
from mew_agent.conversation.transcript import Transcript
from mew_agent.model.usage import Usage

SUGGESTION = Suggestion("key", "remove something", 7, "low")


class Desk:
    """One agent's remedies, over a context of which 190,000 tokens of 200,000 were reported."""

    def __init__(self, policy: Policy = DOMINDS_V3) -> None:
        self.tracker = Tracker(History(), policy, resolve_window(200_000), "model")
        self.report(190_000)
        self.transcript = Transcript(self.tracker, MemoryStore())
        self.heard: list[ContextEvent] = []
        self.remedies = Remedies(self.transcript, Events([self.heard.append]))

    def report(self, prompt_tokens: int | None) -> None:
        usage = None if prompt_tokens is None else Usage(prompt_tokens, 10, prompt_tokens + 10)
        self.tracker.call_kept(usage, call_id="c", at="t", last_seq=-1, revision=0, served_model="m", fingerprint="f")

    def carry_out(self, *actions: Action, prompting: str | None = None) -> Due:
        self.tracker.policy_state = PolicyState(prompting=prompting)
        return self.remedies.carry_out(actions)


EVERY_ACTION: tuple[Action, ...] = (
    NearLimitAction(),
    CompactAction("threshold", 10),
    RemindAction("context_health"),
    UnremindAction("context_health"),
    InjectAction("caution"),
    ClearAction("why"),
    RestartAction(1, 3),
    AbortAction("full"),
    ErrorAction("broken"),
    StateChangedAction("a", "b"),
    ApproachingRedlineAction(),
    RedlinedAction(),
    SuggestAction(SUGGESTION),
)


def test_there_is_no_action_that_nobody_carries_out() -> None:
    assert {type(action) for action in EVERY_ACTION} == set(typing.get_args(Action))
    idle = Desk()
    assert idle.carry_out(prompting="caution") == Due()
    for action in EVERY_ACTION:
        desk = Desk()
        due = desk.carry_out(action, prompting="caution")
        stands = desk.transcript.standing != idle.transcript.standing
        assert due != Due() or desk.heard or stands or isinstance(action, UnremindAction)


def test_interventions_are_handed_back_and_words_come_in_order() -> None:
    compact, restart = CompactAction("stream", 10), RestartAction(1, 3)
    changed = StateChangedAction("warning", "critical")
    due = Desk(TACHIKOMA).carry_out(changed, ApproachingRedlineAction(), NearLimitAction(), compact, restart)
    assert due == Due(
        words=["state_changed:warning -> critical", "approaching_redline", "near_limit"],
        compact=compact,
        restart=restart,
    )
    desk = Desk()
    assert desk.carry_out(ClearAction("why")) == Due()
    assert desk.remedies.planned_clear == "why"
    assert Desk().carry_out(AbortAction("full")).stop == AbortAction("full")


def test_redlines_and_suggestions_are_events_with_their_figures() -> None:
    desk = Desk(TACHIKOMA)
    desk.carry_out(ApproachingRedlineAction(), RedlinedAction(), SuggestAction(SUGGESTION))
    assert desk.heard == [
        RedlineApproached(190_010, 200_000),
        RedlineCrossed(190_010, 200_000),
        SavingSuggested(SUGGESTION),
    ]


async def test_a_prompt_waits_and_enters_once_marked_as_ours() -> None:
    desk = Desk()
    desk.carry_out(InjectAction("critical", 4), prompting="critical")
    (text,) = desk.remedies.notices
    assert "190,000 of 200,000" in text
    injection = desk.tracker.report().injection
    assert injection is not None
    assert (injection.kind, injection.remaining) == ("countdown", 4)
    await desk.remedies.enter_notices()
    await desk.remedies.enter_notices()
    (item,) = desk.transcript.history.items
    assert (item.role, item.content, item.notice, item.envelope_id) == ("user", text, True, None)


def test_an_injection_is_in_force_as_long_as_its_level_is() -> None:
    desk = Desk()
    desk.carry_out(InjectAction("caution"), prompting="caution")
    desk.carry_out(prompting="caution")
    assert desk.tracker.injection is not None
    desk.carry_out(prompting=None)
    assert desk.tracker.injection is None


def test_a_reminder_is_in_force_as_long_as_it_is_there_and_renders_the_newest_figures() -> None:
    desk = Desk(DOMINDS_V1)
    desk.carry_out(RemindAction("context_health"))
    assert desk.tracker.injection is not None
    assert desk.tracker.injection.kind == "reminder"
    assert "190,000 of 200,000" in desk.remedies.note
    desk.report(150_000)
    assert "150,000 of 200,000" in desk.remedies.note
    desk.report(None)
    assert "not known" in desk.remedies.note
    desk.carry_out(UnremindAction("context_health"))
    assert desk.remedies.note == ""
    assert desk.tracker.report().injection is None


async def test_everything_that_stands_is_taken_up_after_a_restart() -> None:
    desk = Desk()
    desk.carry_out(InjectAction("critical", 2), prompting="critical")
    desk.remedies.reminders.add("The pier.", at="t")
    desk.remedies.plan_clear("why")
    desk.remedies.keep_standing()
    await desk.transcript.keep()
    fresh = Transcript(Tracker(History(), DOMINDS_V3, resolve_window(200_000), "model"), desk.transcript.store)
    await fresh.load()
    again = Remedies(fresh, Events())
    again.restored()
    assert again.notices == desk.remedies.notices
    assert again.planned_clear == "why"
    assert [one.text for one in again.reminders.all] == ["The pier."]
    assert fresh.tracker.injection == desk.tracker.injection
    assert again.reminders.add("next", at="t").id == "r2"


async def test_what_another_policy_decided_is_let_go_but_the_agents_own_notes_stay() -> None:
    desk = Desk()
    desk.remedies.reminders.add("The pier.", at="t")
    desk.carry_out(RemindAction("context_health"), InjectAction("critical", 2), prompting="critical")
    desk.remedies.plan_clear("why")
    await desk.transcript.keep()
    fresh = Transcript(Tracker(History(), MEW, resolve_window(200_000), "model"), desk.transcript.store)
    await fresh.load()
    again = Remedies(fresh, Events())
    again.restored()
    assert (again.notices, again.planned_clear, fresh.tracker.injection) == ((), None, None)
    assert fresh.tracker.policy_state == PolicyState()
    assert [one.text for one in again.reminders.all] == ["The pier."]


@pytest.mark.parametrize(("reason", "told"), [("countdown ended", 1), (None, 0)])
def test_a_new_course_keeps_reminders_and_drops_prompts(reason: str | None, told: int) -> None:
    desk = Desk()
    desk.remedies.reminders.add("The pier.", at="t")
    desk.carry_out(InjectAction("critical", 0), prompting="critical")
    desk.remedies.plan_clear("countdown ended")
    desk.tracker.policy_state = PolicyState()
    desk.remedies.new_course(reason)
    assert desk.remedies.planned_clear is None
    assert len(desk.remedies.notices) == told
    assert all("A new course begins: countdown ended." in notice for notice in desk.remedies.notices)
    assert desk.tracker.injection is None
    assert [one.text for one in desk.transcript.standing.reminders] == ["The pier."]


def test_every_other_level_is_an_event_also_an_unknown_one() -> None:
    desk = Desk()
    for tokens in (190_000, 190_000, None, 5_000):
        desk.report(tokens)
        desk.remedies.note_level()
    assert desk.heard == [
        LevelChanged("unknown", "critical", 3, 190_010, 200_000, "reported"),
        LevelChanged("critical", "unknown", None, None, 200_000, "unknown"),
        LevelChanged("unknown", "healthy", 0, 5_010, 200_000, "reported"),
    ]


@pytest.mark.parametrize(
    ("policy", "offers"), [(MEW, False), (TACHIKOMA, False), (DOMINDS_V1, True), (DOMINDS_V3, True)]
)
def test_reminders_are_offered_where_the_policy_speaks_of_them(policy: Policy, offers: bool) -> None:
    assert Desk(policy).remedies.offers_reminders == offers
