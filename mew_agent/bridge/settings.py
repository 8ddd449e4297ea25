"""The settings of a bridge: which MCP server it runs, and its timeouts and retries.

Owns the keys and their defaults. A server inherits only the variables of `mew_protocol.environment`. Starts nothing
and does not import `mcp`.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from mew_protocol.environment import inherited
from mew_protocol.setting_problems import matching
from pydantic import BaseModel, ConfigDict, Field

from mew_agent.child_program import ChildFailed

BRIDGE_CONFIG: Final = "MEW_BRIDGE_CONFIG"
"""Environment variable with the settings as JSON. Not an argument, because `ps` would show the keys in it."""


class ServerFailed(ChildFailed):
    """An MCP server that cannot be used."""

    role: ClassVar[str] = "the MCP server"


class _BridgeModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StdioServer(_BridgeModel):
    """An MCP server that runs as a child process and uses standard input and output."""

    command: str = Field(min_length=1)
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    transport: Literal["stdio"] = "stdio"

    def __str__(self) -> str:
        return self.command

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The environment of the server: the inherited part of `environ`, and `env`."""
        return {**inherited(environ), **self.env}


class HttpServer(_BridgeModel):
    """An MCP server at a URL, over streamable HTTP. `headers` are sent with every request."""

    url: Annotated[str, matching(r"(?s)https?://[^/].*", "must be a URL like https://example.org/mcp")]
    headers: dict[str, str] = Field(default_factory=dict)
    transport: Literal["http"] = "http"

    def __str__(self) -> str:
        return self.url.partition("?")[0]


class BridgeSettings(_BridgeModel):
    """The settings of one bridge. Timeouts are in seconds.

    A server that fails is restarted at most `max_reconnects` times in a row, with delays that double. A run of a
    minute resets the count.
    """

    server: Annotated[StdioServer | HttpServer, Field(discriminator="transport")]
    init_timeout_seconds: float = Field(default=30.0, gt=0)
    request_timeout_seconds: float = Field(default=300.0, gt=0)
    reconnect: bool = True
    max_reconnects: int = Field(default=3, ge=0)
