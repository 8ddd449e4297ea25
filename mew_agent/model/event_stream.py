"""[pure] Cut the bytes of a model's answer into events.

Owns the line format, including its careless variants: the first byte distinguishes an event stream from a whole JSON
value, because servers label each as the other. Does not interpret events.

No library reads all answers. Of 83 recorded shapes of streams, `httpx2.EventSource` loses text, figures or errors of 7:
those without a last line end, with one line end between events, with a byte order mark, or with errors on lines of
their own. The stream of the openai package loses 9 of the 59 shapes of chat completions: also figures after the end
mark. `tests/mew_agent/model/test_event_stream.py` names them. Also, these libraries fetch the bytes
themselves, and a relay receives them from elsewhere.
"""

import json
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

MAX_EVENT_BYTES: Final = 32 * 1024 * 1024
"""Size of one event of a stream, or of a whole answer, that is still read."""

_WHOLE: Final = (b"{", b"[", b"<")
_DONE: Final = b"[DONE]"
_NOT_JSON: Final = "the answer is not valid JSON"


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `data` is decoded JSON, or the text of an error without JSON."""

    data: Any = None
    is_done: bool = False  # at the end mark `[DONE]`
    is_error: bool = False  # the line itself reports an error
    is_whole: bool = False  # a complete answer, without streaming


@dataclass(slots=True)
class EventDecoder:
    """Decodes one answer: `feed` its bytes in order, then `end`. Raises ValueError for data that is not JSON."""

    is_whole: bool | None = None
    """Whether the answer is one JSON value and no stream of events; None until its first byte."""
    _parts: list[bytes] = field(default_factory=list)  # of an incomplete line, or of an incomplete answer
    _data: list[bytes] = field(default_factory=list)  # the lines of an incomplete event
    _parts_size: int = 0
    _data_size: int = 0
    _says_error: bool = False

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield the events that end in the next bytes."""
        if self.is_whole is None:
            chunk = chunk.removeprefix(BOM_UTF8)
            if start := chunk.lstrip():
                self.is_whole = start.startswith(_WHOLE)
        self._parts.append(chunk)
        self._parts_size += len(chunk)
        if self._parts_size + self._data_size > MAX_EVENT_BYTES:
            raise ValueError("an event is too large")
        if self.is_whole is not False or b"\n" not in chunk:
            return
        lines = b"".join(self._parts).splitlines(keepends=True)
        self._parts = [] if lines[-1].endswith(b"\n") else [lines.pop()]
        self._parts_size = sum(map(len, self._parts))
        for line in lines:
            yield from self._read(line.rstrip(b"\r\n"))

    def end(self) -> Iterator[Event]:
        """Yield the whole answer, or the last event of a stream without a line end. Ignores a part of an event."""
        rest = b"".join(self._parts)
        self._parts = []
        if self.is_whole:
            yield Event(_decoded(rest), is_whole=True)
            return
        try:
            yield from self._read(rest)
            yield from self._read(b"")
        except ValueError:
            return

    def _read(self, line: bytes) -> Iterator[Event]:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._says_error = value.strip() == b"error"
        elif name == b"error":
            yield Event(_error(value), is_error=True)
        elif name == b"data":
            self._data.append(value)
            self._data_size += len(value)
            # Some servers write no empty line after an event of one line.
            if len(self._data) == 1 and value.rstrip().endswith((b"}", b"]")) and (event := self._event(value)):
                yield event
        elif not line.strip():
            data, self._says_error = self._data, self._says_error and bool(self._data)
            if data:
                event = self._event(b"\n".join(data))
                if event is None:
                    raise ValueError(_NOT_JSON)
                yield event

    def _event(self, value: bytes) -> Event | None:
        """Return the event with this data; None if it is not complete."""
        is_done, event = value.strip().startswith(_DONE), None
        try:
            event = Event(is_done=True) if is_done else Event(_decoded(value), is_error=self._says_error)
        except ValueError:
            if not self._says_error:
                return None
            event = Event(_error(value), is_error=True)
        self._data, self._data_size, self._says_error = [], 0, False
        return event


def _decoded(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(_NOT_JSON) from error


def _error(value: bytes) -> Any:
    """Return the JSON of an error line, else its text."""
    try:
        return _decoded(value)
    except ValueError:
        return value.decode(errors="replace").strip()
