"""What a bridge is told: which MCP server, and how patient to be with it.

Owns the keys and their defaults, and what a server may see of the environment. Starts nothing and imports no `mcp`.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from mew_agent.errors import ConfigError

BRIDGE_CONFIG: Final = "MEW_BRIDGE_CONFIG"
"""Environment variable with the settings as JSON: they may hold keys, which are nobody's business in `ps`."""

_PASSED_ON: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TZ", "TMPDIR", "LANG", "LANGUAGE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "VIRTUAL_ENV", "MEW_RUN"),
        *("APPDATA", "LOCALAPPDATA", "PATHEXT", "SYSTEMROOT", "SYSTEMDRIVE", "TEMP", "USERNAME", "USERPROFILE"),
        *("HOMEDRIVE", "HOMEPATH", "PROCESSOR_ARCHITECTURE"),
    }
)
"""What programs need to run at all. Keys and tokens are not among them: a server gets those in `env`."""


class MissingExtra(ConfigError):
    """A package that only an extra installs is not there. `where` is what needs it, `expected` how to get it."""

    def __str__(self) -> str:
        return f"{self.where} needs the extra {self.problem}: {self.expected}"


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StdioServer(_Settings):
    """An MCP server that is started as a program and spoken to over its standard input and output."""

    command: str = Field(min_length=1)
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    transport: Literal["stdio"] = "stdio"

    def __str__(self) -> str:
        return self.command

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What the program sees: what programs need of `environ`, and its own `env`."""
        needed = {key: value for key, value in environ.items() if key in _PASSED_ON or key.startswith("LC_")}
        return {**needed, **self.env}


class HttpServer(_Settings):
    """An MCP server that runs somewhere and is reached over streamable HTTP. `headers` go with every request."""

    url: str = Field(pattern=r"^https?://[^/]")
    headers: dict[str, str] = Field(default_factory=dict)
    transport: Literal["http"] = "http"

    def __str__(self) -> str:
        return self.url.partition("?")[0]


class BridgeSettings(_Settings):
    """A bridge. Times in seconds.

    A server that ends is started again, after pauses that double, at most `max_reconnects` times in a row; one that
    ran for a minute starts a new row.
    """

    server: Annotated[StdioServer | HttpServer, Field(discriminator="transport")]
    init_timeout_seconds: float = Field(default=30.0, gt=0)
    request_timeout_seconds: float = Field(default=300.0, gt=0)
    reconnect: bool = True
    max_reconnects: int = Field(default=3, ge=0)


def require_mcp(what: str = "the MCP bridge") -> None:
    """Raises `MissingExtra` unless the official `mcp` package is installed."""
    if find_spec("mcp") is None:
        raise MissingExtra(what, "'mcp'", "pip install 'mew-agent[mcp]'")
