"""What a participant joins with, and which answers of a gateway refuse it for good.

Owns when reconnecting is pointless: everything else (a restart, a full space, a broken link) passes by itself. Does not
know the connection.
"""

from dataclasses import dataclass, field
from pathlib import Path

from mew_protocol.envelope import Envelope
from mew_protocol.errors import (
    CLOSE_NOT_FOUND,
    CLOSE_REMOVED,
    CLOSE_UNAUTHORIZED,
    SPACE_NOT_FOUND,
    SUPERSEDED,
    UNAUTHORIZED,
)
from mew_protocol.ids import GATEWAY
from mew_protocol.kinds import SYSTEM_ERROR

from mew_agent.errors import GatewayError, Superseded, Unauthorized
from mew_agent.gateway_address import websocket_url

MAX_RETRY_AFTER_SECONDS = 60.0
"""Longest pause that a gateway may ask for before we try to join again."""


class TryLater(OSError):
    """The gateway admits no more members now, and names a pause in seconds."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class Credentials:
    """What joining takes: the gateway's URL, the space, the participant's id, and its token (never shown).

    `gateway` may name several gateways of the space, separated by commas, and may use http(s)://; anything else raises
    `ConfigError`. `ca_file`: certificates to trust.
    """

    gateway: str
    space: str
    participant: str
    token: str = field(repr=False)
    ca_file: str | Path | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "gateway", websocket_url(self.gateway))

    def raise_if_rejected(self, message: Envelope, *, is_joined: bool) -> None:
        """Raise a `GatewayError` if this message of the gateway refuses us for good, and `TryLater` if for a while."""
        if message.kind != SYSTEM_ERROR or message.sender != GATEWAY:
            return
        detail = str(message.body.get("message") or "")
        seconds = message.body.get("retry_after_seconds")
        match message.body.get("error"):
            case str(code) if code == SUPERSEDED:
                # The newest connection wins. Joining again would end that one, and the two would alternate forever.
                raise Superseded(self.participant)
            case _ if is_joined:
                return  # about an envelope of ours
            case str(code) if code == UNAUTHORIZED:
                raise Unauthorized(self.participant, detail)
            case str(code) if code == SPACE_NOT_FOUND:
                raise GatewayError(detail or self._no_space)
            case _ if isinstance(seconds, int | float):
                raise TryLater(detail, max(0.0, min(seconds, MAX_RETRY_AFTER_SECONDS)))
            case _:
                return

    def raise_if_closed_for_good(self, close_code: int | None, http_status: int | None) -> None:
        """Raise a `GatewayError` if the code of a closed socket, or the HTTP status of a refused one, is final."""
        # Proxies and other gateways refuse a token with a plain HTTP status, before there is a socket to close.
        if http_status in (401, 403) or close_code == CLOSE_UNAUTHORIZED:
            raise Unauthorized(self.participant) from None
        if close_code == CLOSE_NOT_FOUND:
            raise GatewayError(self._no_space) from None
        if close_code == CLOSE_REMOVED:
            raise GatewayError(f"'{self.participant}' was removed from the space") from None

    @property
    def _no_space(self) -> str:
        return f"no space '{self.space}' at {self.gateway}"
