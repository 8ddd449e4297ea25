"""The JSON form of each action."""

from typing import Any

import pytest

from mew_agent.context.policy import (
    Action,
    AnnounceAction,
    CompactAction,
    InjectAction,
    RemindAction,
    RestartAction,
    StopAction,
    SuggestAction,
    Suggestion,
)
from mew_agent.parts.policies.simulation import action_json

FORMS: list[tuple[Action, dict[str, Any]]] = [
    (RemindAction("context_health"), {"type": "remind"}),
    (RemindAction("context_health", is_shown=False), {"type": "unremind"}),
    (InjectAction("caution"), {"type": "inject"}),
    (InjectAction("critical", 4), {"type": "inject", "remaining": 4}),
    (InjectAction("critical", 0), {"type": "inject", "remaining": 0}),
    (StopAction("clear", "countdown ended"), {"type": "clear"}),
    (AnnounceAction("near_limit"), {"type": "near_limit"}),
    (CompactAction("threshold", 89_600), {"type": "compact", "target_tokens": 89_600}),
    (RestartAction(1, 3), {"type": "restart"}),
    (StopAction("abort", "full"), {"type": "abort"}),
    (StopAction("error", "why"), {"type": "error", "message": "why"}),
    (
        AnnounceAction("state_changed", "nominal", "elevated"),
        {"type": "state_changed", "from": "nominal", "to": "elevated"},
    ),
    (AnnounceAction("approaching_redline"), {"type": "approaching_redline"}),
    (AnnounceAction("redlined"), {"type": "redlined"}),
    (
        SuggestAction(Suggestion("remove_user", "remove 6", 600, "low")),
        {"type": "suggest", "text": "remove 6", "impact": "low", "tokens_saved": 600},
    ),
]


@pytest.mark.parametrize(("action", "form"), FORMS, ids=lambda value: getattr(value, "get", lambda _: "")("type"))
def test_the_json_of_an_action_has_its_type_and_fields(action: Action, form: dict[str, Any]) -> None:
    assert action_json(action) == form
