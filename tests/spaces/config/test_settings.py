"""The typed model of space.yaml."""

import pytest
from mew_spaces.config.settings import Capability, ParticipantConfig, SpaceConfig
from pydantic import ValidationError


def test_a_configuration_is_immutable() -> None:
    config = SpaceConfig.model_validate({"space": {"id": "a"}})
    with pytest.raises(ValidationError):
        config.space = config.space  # type: ignore[misc]


@pytest.mark.parametrize(
    ("participant", "is_person", "acts_as"),
    [
        ({}, True, "person"),
        ({"tokens": ["t"], "output_log": "x"}, True, "person"),
        ({"command": "x"}, False, "tool"),
        ({"agent": {}}, False, "agent"),
        pytest.param({"mcp_server": {"command": "x"}}, False, "tool", marks=pytest.mark.part("mcp")),
        pytest.param(
            {"type": "mcp-bridge", "mcp_server": {"command": "x"}}, False, "tool", marks=pytest.mark.part("mcp")
        ),
    ],
)
def test_only_a_participant_without_a_program_is_a_person(
    participant: dict[str, object], *, is_person: bool, acts_as: str
) -> None:
    read = ParticipantConfig.model_validate(participant)
    assert (read.is_person, read.acts_as) == (is_person, acts_as)


def test_a_pattern_is_sent_as_written() -> None:
    written = {"kind": ["chat", "chat/*"], "payload": {"n": None}}
    assert Capability.model_validate(written).pattern() == written


def test_the_default_limits_allow_two_thousand_members() -> None:
    limits = SpaceConfig.model_validate({"space": {"id": "a"}}).limits
    assert limits.members >= 2_000
    assert limits.write_buffer_bytes > 0
    assert limits.join_timeout_seconds > 0
