"""Options are checked when they are made."""

from typing import Any

import pytest
from pydantic import ValidationError

from mew_agent.rehearsal.options import RehearsalOptions


@pytest.mark.parametrize(
    "fields",
    [
        {"window_tokens": 0},
        {"usage_on": "sometimes"},
        {"cut_after_chunks": -1},
        {"status": 200},
        {"windowtokens": 5},
        {"fixed_usage": [(1, -1, 2)]},
        {"script": [{"txt": "x"}]},
    ],
)
def test_an_invalid_option_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RehearsalOptions(**fields)


def test_options_are_immutable() -> None:
    with pytest.raises(ValidationError):
        RehearsalOptions().window_tokens = 5  # type: ignore[misc]
