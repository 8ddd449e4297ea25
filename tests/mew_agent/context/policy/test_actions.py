"""The JSON form of each action."""

from typing import Any

import pytest

from mew_agent.context.policy import (
    Abort,
    Action,
    AnnounceNearLimit,
    ApproachingRedline,
    Clear,
    Compact,
    Error,
    Inject,
    Redlined,
    Remind,
    Restart,
    StateChanged,
    Suggest,
    Suggestion,
    Unremind,
    action_json,
)

FORMS: list[tuple[Action, dict[str, Any]]] = [
    (Remind("context_health"), {"type": "remind"}),
    (Unremind("context_health"), {"type": "unremind"}),
    (Inject("caution"), {"type": "inject"}),
    (Inject("critical", 4), {"type": "inject", "remaining": 4}),
    (Inject("critical", 0), {"type": "inject", "remaining": 0}),
    (Clear("countdown ended"), {"type": "clear"}),
    (AnnounceNearLimit(), {"type": "near_limit"}),
    (Compact("threshold", 89_600, 89_600), {"type": "compact", "target_tokens": 89_600}),
    (Restart(1, 3), {"type": "restart"}),
    (Abort("full"), {"type": "abort"}),
    (Error("why"), {"type": "error", "message": "why"}),
    (StateChanged("nominal", "elevated"), {"type": "state_changed", "from": "nominal", "to": "elevated"}),
    (ApproachingRedline(), {"type": "approaching_redline"}),
    (Redlined(), {"type": "redlined"}),
    (
        Suggest(Suggestion("remove_user", "remove 6", 600, "low")),
        {"type": "suggest", "text": "remove 6", "impact": "low", "tokens_saved": 600},
    ),
]


@pytest.mark.parametrize(("action", "form"), FORMS, ids=lambda value: getattr(value, "get", lambda _: "")("type"))
def test_an_action_is_shown_by_its_type_and_what_a_reader_needs(action: Action, form: dict[str, Any]) -> None:
    assert action_json(action) == form
