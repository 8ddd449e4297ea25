"""The typed model of space.yaml, apart from any file."""

import pytest
from mew_spaces.config.settings import Capability, ParticipantConfig, SpaceConfig
from pydantic import ValidationError


def test_nothing_changes_after_reading() -> None:
    config = SpaceConfig.model_validate({"space": {"id": "a"}})
    with pytest.raises(ValidationError):
        config.space = config.space  # type: ignore[misc]


@pytest.mark.parametrize(
    ("participant", "is_person", "is_bridge"),
    [
        ({}, True, False),
        ({"tokens": ["t"], "output_log": "x"}, True, False),
        ({"command": "x"}, False, False),
        ({"agent": {}}, False, False),
        ({"mcp_server": {"command": "x"}}, False, True),
        ({"type": "mcp-bridge", "mcp_server": {"command": "x"}}, False, True),
    ],
)
def test_what_stands_behind_a_participant_makes_it_a_person_or_not(
    participant: dict[str, object], *, is_person: bool, is_bridge: bool
) -> None:
    read = ParticipantConfig.model_validate(participant)
    assert (read.is_person, read.is_bridge) == (is_person, is_bridge)


def test_a_pattern_travels_as_it_was_written() -> None:
    written = {"kind": ["chat", "chat/*"], "payload": {"n": None}}
    assert Capability.model_validate(written).pattern() == written


def test_limits_hold_a_space_of_two_thousand() -> None:
    limits = SpaceConfig.model_validate({"space": {"id": "a"}}).limits
    assert limits.members >= 2_000
    assert limits.write_buffer_bytes > 0
    assert limits.join_timeout_seconds > 0
