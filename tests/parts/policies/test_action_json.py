"""The JSON form of each action."""

from typing import Any

import pytest

from mew_agent.context.policy import (
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
)
from mew_agent.parts.policies.simulation import action_json

FORMS: list[tuple[Action, dict[str, Any]]] = [
    (RemindAction("context_health"), {"type": "remind"}),
    (UnremindAction("context_health"), {"type": "unremind"}),
    (InjectAction("caution"), {"type": "inject"}),
    (InjectAction("critical", 4), {"type": "inject", "remaining": 4}),
    (InjectAction("critical", 0), {"type": "inject", "remaining": 0}),
    (ClearAction("countdown ended"), {"type": "clear"}),
    (NearLimitAction(), {"type": "near_limit"}),
    (CompactAction("threshold", 89_600), {"type": "compact", "target_tokens": 89_600}),
    (RestartAction(1, 3), {"type": "restart"}),
    (AbortAction("full"), {"type": "abort"}),
    (ErrorAction("why"), {"type": "error", "message": "why"}),
    (StateChangedAction("nominal", "elevated"), {"type": "state_changed", "from": "nominal", "to": "elevated"}),
    (ApproachingRedlineAction(), {"type": "approaching_redline"}),
    (RedlinedAction(), {"type": "redlined"}),
    (
        SuggestAction(Suggestion("remove_user", "remove 6", 600, "low")),
        {"type": "suggest", "text": "remove 6", "impact": "low", "tokens_saved": 600},
    ),
]


@pytest.mark.parametrize(("action", "form"), FORMS, ids=lambda value: getattr(value, "get", lambda _: "")("type"))
def test_the_json_of_an_action_has_its_type_and_fields(action: Action, form: dict[str, Any]) -> None:
    assert action_json(action) == form
