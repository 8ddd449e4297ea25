"""What the parts of a participant need of the whole: who it is, who else is here, what it may say, and saying it.

Owns that boundary only. `Participant` has a voice; its parts (`asking`, `exchanges`, `offers`, the events) know nothing
else of it, so that each can be read, and tried, without the others.
"""

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

from mew_protocol.capability import CapabilitySet
from mew_protocol.envelope import Envelope
from pydantic import BaseModel

from mew_agent.participant.peers import Peers
from mew_agent.participant.requests import Question


@runtime_checkable
class Voice(Protocol):
    """See the module, and `Saying` for what the methods promise."""

    id: str
    peers: Peers
    capabilities: CapabilitySet

    @property
    def is_joined(self) -> bool: ...

    def start_soon(self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None: ...

    def may_send(self, kind: str, payload: Mapping[str, Any] | None = None, to: tuple[str, ...] = ()) -> bool: ...

    def draft(
        self,
        kind: str,
        payload: BaseModel | Mapping[str, Any] | None,
        *,
        to: tuple[str, ...] = (),
        correlation_id: tuple[str, ...] = (),
        context: str | None = None,
    ) -> Envelope: ...

    async def post(self, envelope: Envelope, *, wait_seconds: float = ...) -> None: ...

    async def send(
        self,
        kind: str,
        payload: BaseModel | Mapping[str, Any] | None = None,
        *,
        to: tuple[str, ...] | list[str] | str = (),
        correlation_id: tuple[str, ...] = (),
        context: str | None = None,
        wait_seconds: float = ...,
    ) -> Envelope: ...

    def posing(self, question: Question) -> AbstractAsyncContextManager[None]: ...
