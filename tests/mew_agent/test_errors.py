"""The texts and the tree of errors."""

import pytest
from mew_settings.installation import install_command

from mew_agent.errors import (
    BadAnswer,
    ConfigError,
    ContextOverflow,
    GatewayError,
    MewAgentError,
    MissingExtra,
    ModelError,
    ModelFailed,
    ModelRateLimited,
    ModelRefused,
    ModelStreamCut,
    ModelUnreachable,
    NotConnected,
    NotPermitted,
    PeerAbsent,
    PeerError,
    PeerTimeout,
    Refused,
    Superseded,
    Unauthorized,
)
from mew_agent.extras import require_extra


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            ConfigError("space.yaml:3:1", "unknown key 'x'", "one of a, b"),
            "space.yaml:3:1: unknown key 'x' (expected one of a, b)",
        ),
        (ConfigError("--id", "is missing"), "--id: is missing"),
        (Unauthorized("coder"), "the gateway refused this token for 'coder' (unauthorized)"),
        (
            Unauthorized("coder", "the gateway refused this token for 'coder'"),
            "the gateway refused this token for 'coder' (unauthorized)",
        ),
        (PeerAbsent("codr", known=("ada", "coder")), "'codr' is not in the space (did you mean 'coder'?)"),
        (Unauthorized("coder", "no"), "the gateway refused this token for 'coder' (unauthorized): no"),
        (
            Superseded("coder"),
            "another connection joined as 'coder' and replaced this one; run one program per participant",
        ),
        (NotConnected("ws://h"), "not connected to the gateway at ws://h"),
        (NotConnected("ws://h", "connection refused"), "not connected to the gateway at ws://h (connection refused)"),
        (NotPermitted("coder", "chat"), "'coder' has no capability that covers 'chat'; add one in space.yaml"),
        (
            NotPermitted("coder", "mcp/request", other_arguments=True),
            "'coder' has no capability that covers 'mcp/request' with these arguments; add one in space.yaml",
        ),
        (PeerTimeout("coder", "chat", 2.5), "'coder' did not answer 'chat' within 2.5 seconds"),
        (Refused("coder", "chat", "too_large"), "the gateway refused 'chat' to 'coder' (too_large)"),
        (
            Refused("coder", "chat", "too_large", "at most 1"),
            "the gateway refused 'chat' to 'coder' (too_large): at most 1",
        ),
        (
            BadAnswer("coder", "payload.status: missing"),
            "cannot read the answer of 'coder': payload.status: missing",
        ),
        (
            ModelUnreachable("http://h/v1", "m", "connection refused"),
            "I could not reach my model at http://h/v1 (connection refused)",
        ),
        (ModelRefused("http://h/v1", "m"), "My model refused my key at http://h/v1"),
    ],
)
def test_error_text_says_what_happened_and_where(error: MewAgentError, said: str) -> None:
    assert str(error) == said


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (ModelUnreachable, "model_unreachable"),
        (ModelRefused, "model_unauthorized"),
        (ModelRateLimited, "model_rate_limited"),
        (ContextOverflow, "context_overflow"),
        (ModelStreamCut, "model_stream_cut"),
        (ModelFailed, "model_error"),
    ],
)
def test_each_model_error_has_a_status(kind: type[ModelError], status: str) -> None:
    error = kind("http://h/v1", "m")
    assert error.status == status
    assert isinstance(error, ModelError)


def test_caller_gateway_and_peer_errors_are_separate() -> None:
    assert issubclass(Unauthorized, GatewayError)
    assert issubclass(Refused, PeerError)
    assert not issubclass(NotPermitted, GatewayError | PeerError)
    assert all(issubclass(kind, MewAgentError) for kind in (ConfigError, GatewayError, PeerError, ModelError))


def test_a_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    require_extra("pytest", "this test")
    installed = {"mcp"}  # version 1, which other libraries need, has no `mcp_types`
    monkeypatch.setattr("mew_agent.extras.find_spec", lambda name: name if name in installed else None)
    with pytest.raises(MissingExtra) as missing:
        require_extra("mcp", "the MCP bridge", "mcp_types")
    assert str(missing.value) == f"the MCP bridge needs the extra 'mcp': {install_command('mcp')}"
