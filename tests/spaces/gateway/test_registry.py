"""Several spaces of one gateway."""

import pytest
from mew_spaces.config.loading import parse_space
from mew_spaces.errors import SpacesError
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.registry import SpaceRegistry
from mew_spaces.gateway.service import SpaceService


def board(name: str, **tokens: str) -> SpaceService:
    config = parse_space(f"space: {{id: {name}}}\nlimits: {{message_bytes: {len(name) * 1024}}}")
    return SpaceService(config, TokenBook(tokens.items()))


ONE, TWO = board("one", ada="a"), board("second", eve="e")
BOTH = SpaceRegistry([ONE, TWO])


@pytest.mark.parametrize(
    ("name", "token", "found"),
    [
        (None, None, ONE),
        ("", "e", TWO),
        (None, "e", TWO),
        ("default", "e", TWO),
        ("default", "unknown", ONE),
        ("one", "e", ONE),
        ("second", None, TWO),
        ("third", "a", None),
    ],
)
def test_a_space_is_found_by_name_or_token(name: str | None, token: str | None, found: SpaceService | None) -> None:
    assert BOTH.find(name, token) is found


def test_a_space_may_be_called_default() -> None:
    named = board("default", bob="b")
    assert SpaceRegistry([ONE, named]).find("default", "a") is named


def test_the_registry_covers_all_spaces() -> None:
    assert (len(BOTH), list(BOTH), BOTH.connections, BOTH.message_bytes) == (2, [ONE, TWO], 0, 6 * 1024)
    BOTH.expire()


def test_a_registry_needs_spaces_with_distinct_names() -> None:
    for boards in ([], [ONE, board("one")]):
        with pytest.raises(SpacesError, match="its own name"):
            SpaceRegistry(boards)


def test_a_key_that_only_the_first_space_sets_gives_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    text = "space: {{id: {}}}\nlimits: {{members: {}, ping_timeout_seconds: {}}}\ngateway: {{tls_cert: a, tls_key: {}}}"
    configs = [parse_space(text.format(*values)) for values in (("first", 5, 5, "a"), ("second", 6, 5, "b"))]
    SpaceRegistry([SpaceService(config, TokenBook()) for config in configs])
    (line,) = caplog.messages
    assert line.startswith("gateway.tls_key of space 'second' has no effect: the first space")
