"""Reads the model calls that pass a relay, and reports each to an observer.

Decides which calls are measured, and recognises their ends.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import anyio.to_thread
import httpx2

from mew_agent.parts.meter.apis import Api
from mew_agent.parts.meter.main_line import MeteredCall
from mew_agent.parts.meter.metered_receipts import RelayedReceipts
from mew_agent.parts.meter.replies import READABLE_ENCODINGS, Reply, ReplyReader
from mew_agent.parts.meter.request_facts import CallFacts, api_of, read_facts
from mew_agent.parts.shared.relay import Holding

logger = logging.getLogger("mew_agent.parts.meter")

_LARGE_BODY_BYTES: Final = 256 * 1024
"""A larger request is parsed in a thread, so that the streams of other calls do not stall."""


class CallObserver(Protocol):
    """Receives the model calls that pass."""

    def begin(self, facts: CallFacts) -> MeteredCall:
        """Add a call with the facts of its request."""
        ...

    def end(self, call: MeteredCall, reply: Reply | None) -> None:
        """Add the reply of a call, or None if it failed or was cut. It is called before the agent sees the end."""
        ...


@dataclass(frozen=True, slots=True)
class MeasuredCalls:
    """Measures the calls of the three APIs; see `CallWatcher`."""

    observer: CallObserver
    encodings: Sequence[str] = READABLE_ENCODINGS
    receipts: RelayedReceipts | None = None

    def reads(self, method: str, path: str) -> bool:
        return method == "POST" and api_of(path) is not None

    async def begin(
        self, path: str, headers: Sequence[tuple[bytes, bytes]], body: bytes | None, response: httpx2.Response
    ) -> "MeasuredCall | None":
        api, named = api_of(path), {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        facts = None if api is None else await _facts(api, named, body, self.receipts)
        if api is None or facts is None:
            if self.receipts is not None:
                self.receipts.missed()
            logger.warning("a call was not measured: its request cannot be read")
            return None
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        reader = ReplyReader(api, encoding) if response.is_success else None
        return MeasuredCall(self.observer, self.observer.begin(facts), reader)


@dataclass(slots=True)
class MeasuredCall:
    """One measured call; see `WatchedCall`. `reader` is None for a response that is an error."""

    observer: CallObserver
    call: MeteredCall
    reader: ReplyReader | None
    has_ended: bool = False

    @property
    def holds(self) -> Holding:
        """See `WatchedCall`. The last chunk of a whole answer waits for the end, and an end mark waits for usage."""
        if self.has_ended or self.reader is None:
            return "nothing"
        if self.reader.awaits_usage:
            return "briefly"
        return "the end" if self.reader.is_whole else "nothing"

    def feed(self, chunk: bytes) -> None:
        if self.reader is not None:
            self.reader.feed(chunk)
            if self.reader.has_ended:
                self.end()

    def end(self, *, was_cut: bool = False) -> None:
        if not self.has_ended:
            self.has_ended = True
            self.observer.end(self.call, None if self.reader is None else self.reader.end(was_cut=was_cut))


async def _facts(
    api: Api, headers: Mapping[str, str], body: bytes | None, receipts: RelayedReceipts | None
) -> CallFacts | None:
    """Return the facts of a whole body; None if it is too large or not a request."""
    if body is None or headers.get("content-encoding", "identity") != "identity":
        return None

    def read() -> CallFacts | None:
        try:
            value = json.loads(body)
            facts = read_facts(api, headers, value, *(() if receipts is None else (receipts.texts.search,)))
        except (ValueError, RecursionError):
            return None
        is_all = facts is not None and facts.previous_response is None
        return replace(facts, body_bytes=len(body)) if facts is not None and is_all else facts

    return read() if len(body) < _LARGE_BODY_BYTES else await anyio.to_thread.run_sync(read)
