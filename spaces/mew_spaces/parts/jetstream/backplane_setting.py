"""NATS servers in `backplane` of space.yaml and in the option `--backplane`.

Owns the accepted forms. Does not connect, or read the named files.
"""

import re
from typing import Annotated, Final, Literal, Self

from mew_settings.setting_problems import matching
from mew_settings.values import SettingsModel, text_as
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

EMBEDDED: Final = "embedded-nats"
"""In place of addresses: start a NATS server of the space's own."""

_FORMS: Final = f"nats://host:port, tls://host:port, several of them with commas between, or {EMBEDDED}"
_ADDRESS: Final = re.compile(r"(?:nats|tls)://(?:\[[0-9A-Fa-f:.]+\]|[^\s/@,:\[\]]+)(?::(\d{1,5}))?")

MOST_SERVERS: Final = 64

FileName = Annotated[str, Field(min_length=1)]


def _checked_server(text: str) -> str:
    if text == EMBEDDED:
        return text
    if "@" in text:
        raise ValueError(
            "an address must not contain a password; use 'user' and 'password_file', 'token_file' or 'credentials'"
        )
    found = _ADDRESS.fullmatch(text.rstrip("/"))
    if found is None or not 1 <= int(found[1] or 4222) <= 65_535:
        raise ValueError(f"must be {_FORMS}")
    return text.rstrip("/") if found[1] else f"{text.rstrip('/')}:4222"


def _as_servers(value: object) -> object:
    """Split a text into several addresses."""
    if not isinstance(value, str):
        return value
    found = value.split(",", MOST_SERVERS)
    if len(found) > MOST_SERVERS:
        raise ValueError(f"must be at most {MOST_SERVERS} addresses")
    return [one.strip() for one in found]


class JetStreamOptions(SettingsModel):
    """NATS servers that connect several gateways of one space. File names are relative to the folder of the space."""

    servers: Annotated[
        tuple[Annotated[str, AfterValidator(_checked_server)], ...],
        BeforeValidator(_as_servers),
        Field(min_length=1),
    ]
    credentials: FileName | None = None
    token_file: FileName | None = None
    user: Annotated[str, Field(min_length=1)] | None = None
    password_file: FileName | None = None
    tls_ca: FileName | None = None
    tls_cert: FileName | None = None
    tls_key: FileName | None = None
    replicas: Literal[1, 3, 5] = 1
    """How many servers of the cluster store each batch. With 3, one of them may fail."""
    prefix: Annotated[str, matching(r"[A-Za-z0-9_]{1,32}", "must be 1 to 32 letters, digits or underscores")] = "mew"

    @property
    def is_embedded(self) -> bool:
        """Whether a NATS server is started for the space."""
        return self.servers == (EMBEDDED,)

    @property
    def needs_tls(self) -> bool:
        """Whether a connection without TLS is refused."""
        return self.tls_ca is not None or self.tls_cert is not None

    _from_servers = text_as("servers")

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        secrets = (self.credentials, self.token_file, self.user, self.tls_ca, self.tls_cert)
        if EMBEDDED in self.servers and (len(self.servers) > 1 or self.replicas > 1 or any(secrets)):
            raise ValueError(f"'{EMBEDDED}' is one server without credentials; name the servers of a cluster instead")
        if (self.user is None) != (self.password_file is None):
            raise ValueError("set both 'user' and 'password_file', or neither")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("set both 'tls_cert' and 'tls_key', or neither")
        ways = [key for key in ("credentials", "token_file", "user") if getattr(self, key) is not None]
        if len(ways) > 1:
            raise ValueError(f"has both '{ways[0]}' and '{ways[1]}'; remove one of them")
        return self
