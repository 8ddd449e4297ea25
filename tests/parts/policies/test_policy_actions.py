"""Policy actions: each is carried out at once or returned as pending, and the state survives a restart."""

import typing

import pytest
from mew_protocol.status_word import StatusWord

from mew_agent.context.history import History
from mew_agent.context.policy import (
    MEW,
    Action,
    AnnounceAction,
    CompactAction,
    InjectAction,
    Policy,
    PolicyState,
    RemindAction,
    RestartAction,
    StopAction,
    SuggestAction,
    Suggestion,
)
from mew_agent.context.sqlite_store import MemoryStore
from mew_agent.context.tracker import Tracker
from mew_agent.context.window import resolve_window
from mew_agent.conversation.context_state import ContextState
from mew_agent.conversation.conversation import Conversation, PendingActions, carry_out
from mew_agent.conversation.conversation_events import (
    ConversationEvent,
    ConversationEvents,
    LevelChanged,
    RedlineApproached,
    RedlineCrossed,
    SavingSuggested,
)
from mew_agent.conversation.model_calls import ConversationOptions
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.model.usage import Usage
from mew_agent.parts.policies.presets import DOMINDS_V1, DOMINDS_V3, TACHIKOMA
from tests.support.trackers import keep_call

SUGGESTION = Suggestion("key", "remove something", 7, "low")


def tracker_for(policy: Policy) -> Tracker:
    return Tracker(History(), policy, resolve_window(200_000), "model")


def report(tracker: Tracker, prompt_tokens: int | None) -> None:
    usage = None if prompt_tokens is None else Usage(prompt_tokens, 10, prompt_tokens + 10)
    keep_call(tracker, usage)


class Scene:
    """A context of 200,000 tokens, of which 190,000 were reported."""

    def __init__(self, policy: Policy = DOMINDS_V3) -> None:
        self.tracker = tracker_for(policy)
        report(self.tracker, 190_000)
        self.events: list[ConversationEvent] = []
        events = ConversationEvents()
        events.subscribe(self._record)
        self.state = ContextState(self.tracker, MemoryStore(), events)

    async def _record(self, event: ConversationEvent) -> None:
        self.events.append(event)

    async def carry_out(self, *actions: Action, prompting: str | None = None) -> PendingActions:
        self.tracker.policy_state = PolicyState(prompting=prompting)
        return await carry_out(actions, self.state)

    async def restarted(self, policy: Policy) -> ContextState:
        """The state after a restart with this policy."""
        await self.state.save()
        fresh = ContextState(tracker_for(policy), self.state.store, ConversationEvents())
        await fresh.load()
        return fresh


EVERY_ACTION: tuple[Action, ...] = (
    AnnounceAction("near_limit"),
    CompactAction("threshold", 10),
    RemindAction("context_health"),
    RemindAction("context_health", is_shown=False),
    InjectAction("caution"),
    StopAction("clear", "why"),
    RestartAction(1, 3),
    StopAction("abort", "full"),
    StopAction("error", "broken"),
    AnnounceAction("state_changed", "a", "b"),
    AnnounceAction("approaching_redline"),
    AnnounceAction("redlined"),
    SuggestAction(SUGGESTION),
)


async def test_every_action_has_an_effect() -> None:
    assert {type(action) for action in EVERY_ACTION} == set(typing.get_args(Action))
    idle = Scene()
    assert await idle.carry_out(prompting="caution") == PendingActions()
    for action in EVERY_ACTION:
        scene = Scene()
        pending = await scene.carry_out(action, prompting="caution")
        changed = scene.state.persisted != idle.state.persisted
        assert pending != PendingActions() or scene.events or changed or isinstance(action, RemindAction)


async def test_interventions_are_returned_and_words_keep_their_order() -> None:
    compact, restart = CompactAction("stream", 10), RestartAction(1, 3)
    changed = AnnounceAction("state_changed", "warning", "critical")
    pending = await Scene(TACHIKOMA).carry_out(
        changed, AnnounceAction("approaching_redline"), AnnounceAction("near_limit"), compact, restart
    )
    assert pending == PendingActions(
        words=[*map(StatusWord.read, ("state_changed:warning -> critical", "approaching_redline", "near_limit"))],
        compact=compact,
        restart=restart,
    )
    scene = Scene()
    assert await scene.carry_out(StopAction("clear", "why")) == PendingActions()
    assert scene.state.planned_clear == "why"
    assert (await Scene().carry_out(StopAction("abort", "full"))).stop == StopAction("abort", "full")


async def test_redlines_and_suggestions_emit_events_with_figures() -> None:
    scene = Scene(TACHIKOMA)
    await scene.carry_out(AnnounceAction("approaching_redline"), AnnounceAction("redlined"), SuggestAction(SUGGESTION))
    assert scene.events == [
        RedlineApproached(190_010, 200_000),
        RedlineCrossed(190_010, 200_000),
        SavingSuggested(SUGGESTION),
    ]


async def test_a_pending_prompt_enters_once_and_is_marked_as_a_notice() -> None:
    scene = Scene()
    await scene.carry_out(InjectAction("critical", 4), prompting="critical")
    (text,) = scene.state.pending_prompts
    assert "190,000 of 200,000" in text
    injection = scene.tracker.report().injection
    assert injection is not None
    assert (injection.kind, injection.remaining) == ("countdown", 4)
    await scene.state.enter_pending_prompts()
    await scene.state.enter_pending_prompts()
    (item,) = scene.state.history.items
    assert (item.role, item.content, item.notice, item.envelope_id) == ("user", text, True, None)


async def test_an_injection_lasts_as_long_as_its_level() -> None:
    scene = Scene()
    await scene.carry_out(InjectAction("caution"), prompting="caution")
    await scene.carry_out(prompting="caution")
    assert scene.tracker.injection is not None
    await scene.carry_out(prompting=None)
    assert scene.tracker.injection is None


async def test_a_policy_reminder_shows_the_newest_figures_until_it_is_removed() -> None:
    scene = Scene(DOMINDS_V1)
    await scene.carry_out(RemindAction("context_health"))
    assert scene.tracker.injection is not None
    assert scene.tracker.injection.kind == "reminder"
    assert "190,000 of 200,000" in scene.state.reminder_text
    report(scene.tracker, 150_000)
    assert "150,000 of 200,000" in scene.state.reminder_text
    report(scene.tracker, None)
    assert "unknown" in scene.state.reminder_text
    await scene.carry_out(RemindAction("context_health", is_shown=False))
    assert scene.state.reminder_text == ""
    assert scene.tracker.report().injection is None


async def test_reminders_prompts_and_plans_survive_a_restart() -> None:
    scene = Scene()
    await scene.carry_out(InjectAction("critical", 2), prompting="critical")
    scene.state.reminders.add("The pier.", at="t")
    scene.state.plan_clear("why")
    fresh = await scene.restarted(DOMINDS_V3)
    assert fresh.pending_prompts == scene.state.pending_prompts
    assert fresh.planned_clear == "why"
    assert [reminder.text for reminder in fresh.reminders.all] == ["The pier."]
    assert fresh.tracker.injection == scene.tracker.injection
    assert fresh.reminders.add("next", at="t").id == "r2"


async def test_a_new_policy_keeps_only_the_agents_own_reminders() -> None:
    scene = Scene()
    scene.state.reminders.add("The pier.", at="t")
    await scene.carry_out(RemindAction("context_health"), InjectAction("critical", 2), prompting="critical")
    scene.state.plan_clear("why")
    fresh = await scene.restarted(MEW)
    assert (fresh.pending_prompts, fresh.planned_clear, fresh.tracker.injection) == ((), None, None)
    assert fresh.tracker.policy_state == PolicyState()
    assert [reminder.text for reminder in fresh.reminders.all] == ["The pier."]


@pytest.mark.parametrize(("reason", "prompts"), [("countdown ended", 1), (None, 0)])
async def test_a_clear_keeps_reminders_and_drops_prompts(reason: str | None, prompts: int) -> None:
    scene = Scene()
    scene.state.reminders.add("The pier.", at="t")
    await scene.carry_out(InjectAction("critical", 0), prompting="critical")
    scene.state.plan_clear("countdown ended")
    scene.tracker.policy_state = PolicyState()
    await scene.state.clear(reason)
    assert scene.state.planned_clear is None
    assert len(scene.state.pending_prompts) == prompts
    assert all("A new course begins: countdown ended." in prompt for prompt in scene.state.pending_prompts)
    assert scene.tracker.injection is None
    assert [reminder.text for reminder in scene.state.persisted.reminders] == ["The pier."]


def conversation_for(tracker: Tracker) -> Conversation:
    return Conversation(
        OpenAIModel("m", "http://h/v1", "k"), tracker, MemoryStore(), ConversationOptions(system_prompt="")
    )


async def test_every_level_change_emits_an_event_even_to_unknown() -> None:
    tracker = tracker_for(DOMINDS_V3)
    conversation = conversation_for(tracker)
    events: list[ConversationEvent] = []

    async def record(event: ConversationEvent) -> None:
        events.append(event)

    conversation.events.subscribe(record)
    for tokens in (190_000, 190_000, None, 5_000):
        report(tracker, tokens)
        await conversation.emit_status()
    assert [event for event in events if isinstance(event, LevelChanged)] == [
        LevelChanged("unknown", "critical", 3, 190_010, 200_000, "reported"),
        LevelChanged("critical", "unknown", None, None, 200_000, "unknown"),
        LevelChanged("unknown", "healthy", 0, 5_010, 200_000, "reported"),
    ]


@pytest.mark.parametrize(
    ("policy", "needs"), [(MEW, False), (TACHIKOMA, False), (DOMINDS_V1, True), (DOMINDS_V3, True)]
)
def test_policies_with_reminders_or_prompts_need_reminder_tools(policy: Policy, needs: bool) -> None:
    assert policy.needs_reminder_tools == needs
