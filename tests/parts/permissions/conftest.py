"""The shared fixtures for commands: a space, an environment without settings, and answers that are lost."""

from collections.abc import Callable
from typing import Any

import pytest
from mew_protocol.errors import OUTCOME_UNKNOWN

from mew_agent.cli.remote.http_api import GatewayApi
from mew_agent.gateway_http import CallRefused
from tests.support.command_space import gateway, quiet_environment

__all__ = ["gateway", "lose_answers", "quiet_environment"]


@pytest.fixture
def lose_answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Begins to lose the first answer to each envelope, so that commands send it again."""
    request = GatewayApi._object
    sent: set[bytes] = set()

    def lose_first(api: GatewayApi, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        answer = request(api, method, path, body)
        if body is None or body in sent:
            return answer
        sent.add(body)
        raise CallRefused("not answered in time", OUTCOME_UNKNOWN)

    return lambda: monkeypatch.setattr(GatewayApi, "_object", lose_first)
