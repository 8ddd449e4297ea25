"""The nearest known name is told, and only one that is near."""

import pytest

from mew_agent.suggestions import did_you_mean


@pytest.mark.parametrize(
    ("name", "said"),
    [("tachicoma", " (did you mean 'tachikoma'?)"), ("zebra", ""), ("", "")],
)
def test_only_a_name_that_is_near_is_told(name: str, said: str) -> None:
    assert did_you_mean(name, ("mew", "tachikoma", "lmstudio")) == said
