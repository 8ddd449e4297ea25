"""[pure] The settings of a bridge: the MCP server that it offers to a space, its timeouts and restarts.

Used by `mcp_server` and `bridge_config` of a space.yaml, and by the program that runs the bridge.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Self

from mew_settings.environment import inherited
from mew_settings.setting_problems import matching
from mew_settings.values import Seconds, SettingsModel, Text
from pydantic import Field, model_validator

BRIDGE_CONFIG: Final = "MEW_BRIDGE_CONFIG"
"""Environment variable with the settings as JSON. Not an argument, because `ps` would show the keys in it."""

PACKAGE: Final = "mcp_types"
"""A package of the extra `mcp`, absent next to `mcp` 1, which other libraries need."""

_URL: Final = r"(?s)https?://[^/].*|.*\$\{.*"
"""In space.yaml, the beginning may be a variable such as `${URL}`."""


class McpServerSettings(SettingsModel):
    """The MCP server of a bridge: a program to start, or the URL of a running server."""

    command: str | None = Field(default=None, min_length=1)
    args: tuple[Text, ...] = ()
    env: dict[str, Text] = Field(default_factory=dict)
    cwd: str | None = None
    url: Annotated[str, matching(_URL, "must be a URL like https://example.org/mcp")] | None = None
    headers: dict[str, Text] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_transport(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("needs either 'command' or 'url'")
        of_program = [key for key, value in (("args", self.args), ("env", self.env), ("cwd", self.cwd)) if value]
        if self.url is not None and of_program:
            raise ValueError(f"'{of_program[0]}' needs 'command', not 'url'; remove one of them")
        if self.command is not None and self.headers:
            raise ValueError("'headers' need 'url', not 'command'; remove one of them")
        return self

    def __str__(self) -> str:
        return self.command or (self.url or "").partition("?")[0]

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the program: the inherited part of `environ`, and `env`."""
        return {**inherited(environ), **self.env}


class BridgeOptions(SettingsModel):
    """How a bridge starts its server. `init_timeout`, a key of the TypeScript tools, is in milliseconds.

    A failed server is restarted at most `max_reconnects` times in a row, with doubling delays. A run of one minute
    resets the count.
    """

    init_timeout: int = Field(default=30_000, gt=0)
    request_seconds: Seconds = 300.0
    reconnect: bool = True
    max_reconnects: int = Field(default=3, ge=0)


class BridgeSettings(BridgeOptions):
    """All settings of one bridge."""

    server: McpServerSettings
