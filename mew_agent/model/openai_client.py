"""The client for model servers: the `Model` interface on any OpenAI-compatible endpoint.

Owns the openai package, the course of a request, and the translation of its errors into a `ModelError`.
Keeps no history and makes no policy decisions.
"""

import importlib
import json
import logging
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, nullcontext
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit, urlunsplit

import anyio
import anyio.to_thread
import httpx2

from mew_agent.client_options import client_options
from mew_agent.errors import ModelError
from mew_agent.failed_connections import causes, connection_cause
from mew_agent.model import dialect as dialects
from mew_agent.model import window_lookup
from mew_agent.model.counting import PromptCounter
from mew_agent.model.event_stream import Event, EventDecoder
from mew_agent.model.failures import ModelErrors, find_overflow
from mew_agent.model.interface import ModelEvent, ModelIdentity, ModelRequest, Window
from mew_agent.model.reply_events import ReplyAssembly, ReplyEvents

if TYPE_CHECKING:
    import openai

OPENAI_BASE_URL: Final = "https://api.openai.com/v1"
logger = logging.getLogger(__name__)

_NO_KEY: Final = "no-key"  # the openai package requires a key; servers without keys ignore it
_REQUEST_ID: Final = "x-request-id"
_CLOSE_SECONDS: Final = 2.0
_AFTER_DONE_SECONDS: Final = 1.0
"""How long to read on after `[DONE]`: some servers send usage then, and the end of the body frees the connection."""


class OpenAIModel:
    """A model on an OpenAI-compatible server: OpenAI, LM Studio, Ollama, vLLM, llama.cpp, OpenRouter and others.

    `base_url` includes `/v1` where the server has it (default: OpenAI's). The environment is not read; pass
    `OPENAI_API_KEY` yourself. Timeouts are in seconds: to connect, until the first chunk (a long prompt on a slow
    machine takes minutes), between chunks, and for each request about the window or a token count. `max_retries` are
    retries of the openai package before a stream is open: on HTTP 408, 409, 429, 5xx and on connection errors.
    `http_client` replaces the HTTP client, for version 3 of the openai package; the caller closes it.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        connect_timeout_seconds: float = 5.0,
        first_chunk_timeout_seconds: float = 600.0,
        idle_timeout_seconds: float = 120.0,
        window_timeout_seconds: float = 2.0,
        max_retries: int = 2,
        http_client: httpx2.AsyncClient | None = None,
    ) -> None:
        self._model = model
        self._base_url = (base_url or OPENAI_BASE_URL).rstrip("/")
        self._api_key = api_key or None
        self._errors = ModelErrors(_without_credentials(self._base_url), model, self._api_key)
        self.identity = ModelIdentity(model, self._errors.endpoint)
        """The model name and the `base_url` without credentials."""
        self._connect_timeout_seconds = connect_timeout_seconds
        self._first_chunk_timeout_seconds = first_chunk_timeout_seconds
        self._idle_timeout_seconds = idle_timeout_seconds
        self._window_timeout_seconds = window_timeout_seconds
        self._max_retries = max_retries
        self._http_client = http_client
        self._client: openai.AsyncOpenAI | None = None
        self._dialect = dialects.dialect_for(urlsplit(self._base_url).hostname)
        # llama.cpp's server closes a connection after a stream without announcing it, and the next request on that
        # connection would fail. Without TLS a new connection is cheap.
        self._stream_headers = {} if self._base_url.startswith("https:") else {"Connection": "close"}
        self._counter = PromptCounter(self._base_url, model)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Run one call; see `Model.stream`. Raises a `ModelError` if the reply is missing or incomplete."""
        answer = await self._open(request)
        assembly, decoder = ReplyAssembly(self._model), EventDecoder()
        seen, request_id = assembly.events, answer.headers.get(_REQUEST_ID)
        try:
            async with aclosing(_events(answer, decoder)) as events:
                while (one := await self._next_event(events, seen)) is not None:
                    try:
                        deltas = assembly.feed(one)
                    except ValueError as error:
                        raise self._errors.failed(str(error)) from error
                    if seen.error is not None:
                        raise self._errors.from_body(seen.error, request_id=request_id)
                    for delta in deltas:
                        yield delta
            if not seen.is_complete:
                raise self._incomplete(decoder, seen, request_id)
        finally:
            await _close(answer, is_reusable=seen.is_complete)
        yield assembly.reply(request_id=request_id, is_streamed=not decoder.is_whole)

    async def discover_window(self) -> Window | None:
        """Ask the server for the loaded window, or else the trained one; see `Model.discover_window`."""
        return await window_lookup.discover_window(self._fetch, self._base_url, self._model)

    async def count_prompt(self, request: ModelRequest) -> int | None:
        """Ask the server for the prompt tokens of `request`; see `Model.count_prompt`."""
        return await self._counter.count(self._fetch, request, self._dialect)

    async def aclose(self) -> None:
        """Close the connections. A later call opens new ones."""
        client, self._client = self._client, None
        if client is not None and self._http_client is None:
            await client.close()

    async def _open(self, request: ModelRequest) -> httpx2.Response:
        """Send the request. Retry in another dialect as long as the server names an argument that it rejects."""
        dialect = self._dialect
        # A server may reject both names of the token limit in turn; each dialect is tried once.
        tried, before = {dialect}, dialect
        while True:
            try:
                with anyio.fail_after(self._first_chunk_timeout_seconds):
                    answer = await self._send(request, dialect)
            except TimeoutError as error:
                raise self._errors.unreachable(f"no answer in {self._first_chunk_timeout_seconds:g} s") from error
            except _sdk_errors() as error:
                other = _other_dialect(dialect, error, request)
                if other is None or other in tried:
                    raise self._translated(error, offered_tools=bool(request.tools)) from error
                if dialect.takes_images and not other.takes_images:
                    logger.warning("'%s' does not support images; prompts only mention them (%s)", self._model, error)
                if dialect.refused_tools != other.refused_tools:
                    refused = ", ".join(other.refused_tools - dialect.refused_tools)
                    logger.warning(
                        "'%s' rejects the tool '%s'; continuing without it (%s)", self._model, refused, error
                    )
                dialect = other
                tried.add(other)
            else:
                if dialect != before:  # another call may have learnt more in the meantime
                    self._dialect = dialect
                return answer

    async def _send(self, request: ModelRequest, dialect: dialects.Dialect) -> httpx2.Response:
        if "openai" not in sys.modules:  # imported in a thread, so that the agent keeps answering
            await anyio.to_thread.run_sync(importlib.import_module, "openai")
        body = dialects.request_body(request, self._model, dialect)
        # In the documented `extra_body`: of parameters, the package compares each value of the whole conversation with
        # its types, which takes 54 ms in place of 1 for 300 messages, and 203 in place of 4 for 1,200
        # (`benchmarks.requests`).
        unchanged = {name: body.pop(name) for name in ("messages", "tools") if name in body}
        # Use the raw response: the package's models drop or convert some parts of chunks.
        raw = await (self._client or self._connect()).chat.completions.with_raw_response.create(
            messages=(),
            **body,
            extra_body=unchanged,
            extra_headers=self._stream_headers if dialect.is_streaming else {},
        )
        response: httpx2.Response = raw.http_response
        if response.headers.get("content-type", "").lower().startswith("text/html"):
            await _close(response, is_reusable=False)
            raise self._errors.failed("the answer is a web page, not a completion; is the base URL right?")
        return response

    def _incomplete(self, decoder: EventDecoder, seen: ReplyEvents, request_id: str | None) -> ModelError:
        if decoder.is_whole:
            return self._errors.failed("the answer has no choices", request_id)
        return self._errors.cut("the stream ended without a finish reason", chunks=seen.chunks)

    async def _next_event(self, events: AsyncGenerator[Event, None], seen: ReplyEvents) -> Event | None:
        """Return the next event, or None at the end. A connection lost after the finish reason also counts as the
        end.
        """
        limit_seconds = self._idle_timeout_seconds if seen.chunks else self._first_chunk_timeout_seconds
        if seen.is_done:
            limit_seconds = min(limit_seconds, _AFTER_DONE_SECONDS)
        try:
            with anyio.fail_after(limit_seconds):
                return await anext(events)
        except StopAsyncIteration:
            return None
        except TimeoutError as error:
            if seen.may_break_off:
                return None
            raise self._errors.cut(f"no data for {limit_seconds:g} s", chunks=seen.chunks) from error
        except _sdk_errors() as error:
            if seen.may_break_off and (seen.is_done or _is_connection_error(error)):
                return None
            raise self._translated(error, chunks_seen=seen.chunks) from error

    def _connect(self) -> "openai.AsyncOpenAI":
        import openai

        options = client_options(self._base_url)
        self._client = openai.AsyncOpenAI(
            api_key=self._api_key or _NO_KEY,
            base_url=self._base_url,
            timeout=openai.Timeout(self._first_chunk_timeout_seconds, connect=self._connect_timeout_seconds),
            max_retries=self._max_retries,
            http_client=self._http_client or openai.DefaultAsyncHttpxClient(**options),
        )
        return self._client

    async def _fetch(self, method: Literal["GET", "POST"], url: str, body: dict[str, object] | None) -> object:
        """Make one request about the window or a token count; see `Fetch`."""
        # Without the openai package, because an agent needs this at its start, and the import takes 0.4 s.
        options, given = client_options(self._base_url), self._http_client
        client = httpx2.AsyncClient(**options) if given is None else nullcontext(given)
        headers = {"Authorization": f"Bearer {self._api_key or _NO_KEY}"}
        try:
            with anyio.fail_after(self._window_timeout_seconds):
                async with client as http:
                    response = await http.request(
                        method, url, json=body, headers=headers, timeout=None, follow_redirects=True
                    )
                    if response.is_success:
                        return response.json()
        except TimeoutError as error:
            raise self._errors.unreachable(f"no answer in {self._window_timeout_seconds:g} s") from error
        except ValueError as error:
            raise self._errors.failed("the answer is not valid JSON") from error
        except _http_errors() as error:
            raise self._errors.unreachable(connection_cause(error)) from error
        raise self._status_error(response, _error_in(response))

    def _translated(
        self, error: BaseException, *, chunks_seen: int | None = None, offered_tools: bool = False
    ) -> ModelError:
        """Return the `ModelError` for an error of the openai package. `chunks_seen` is None until a stream is open."""
        import openai

        if _is_connection_error(error):
            return self._connection_error(error, chunks_seen)
        match error:
            case openai.APIStatusError():
                return self._status_error(error.response, error.body, offered_tools=offered_tools)
            case openai.APIResponseValidationError():
                detail = f"HTTP {error.status_code}: {error.message}"
                return self._errors.failed(detail, http_status=error.status_code)
            case openai.APIError():
                return self._errors.from_body(error.body or error.message)
            case json.JSONDecodeError() | UnicodeDecodeError():
                return self._errors.failed("the answer is not valid JSON")
            case _:
                return self._errors.failed(str(error) or type(error).__name__)

    def _status_error(self, response: httpx2.Response, body: object, *, offered_tools: bool = False) -> ModelError:
        return self._errors.from_body(
            body,
            status=response.status_code,
            reason=response.reason_phrase or "no reason given",
            request_id=response.headers.get(_REQUEST_ID),
            wait_seconds=_seconds(response.headers.get("retry-after")),
            offered_tools=offered_tools,
        )

    def _connection_error(self, error: BaseException, chunks_seen: int | None) -> ModelError:
        import openai

        if chunks_seen is not None:
            return self._errors.cut(connection_cause(error), chunks=chunks_seen)
        if not isinstance(error, (openai.APITimeoutError, *_of_http("TimeoutException"))):
            return self._errors.unreachable(connection_cause(error))
        if any(isinstance(cause, _of_http("ConnectTimeout")) for cause in causes(error)):
            return self._errors.unreachable(f"no connection in {self._connect_timeout_seconds:g} s")
        return self._errors.unreachable(f"no answer in {self._first_chunk_timeout_seconds:g} s")


async def _events(response: httpx2.Response, decoder: EventDecoder) -> AsyncGenerator[Event, None]:
    """Yield each event of an answer. The openai package would stop at `[DONE]`."""
    async for piece in response.aiter_bytes():
        for event in decoder.feed(piece):
            yield event
    for event in decoder.end():
        yield event


def _error_in(response: httpx2.Response) -> object:
    """Return the `error` object of an error response, else its whole JSON or text."""
    try:
        body = response.json()
    except ValueError:
        return response.text
    return body.get("error", body) if isinstance(body, Mapping) else body


def _sdk_errors() -> tuple[type[Exception], ...]:
    """Return every exception of a call: the openai package's own, its HTTP library's, and errors of decoding."""
    import openai

    return (openai.OpenAIError, ValueError, *_of_http("StreamError"), *_http_errors())


def _http_errors() -> tuple[type[Exception], ...]:
    """Return the errors of the HTTP client, without its decoding errors."""
    return (OSError, *_of_http("HTTPError", "InvalidURL"))


def _of_http(*names: str) -> tuple[type[Exception], ...]:
    """Return the HTTP client's exceptions with these names. Before version 3, the openai package uses `httpx`."""
    libraries = (httpx2, sys.modules.get("httpx"))
    return tuple(getattr(library, name) for library in libraries if library is not None for name in names)


def _other_dialect(dialect: dialects.Dialect, error: Exception, request: ModelRequest) -> dialects.Dialect | None:
    import openai

    if not isinstance(error, openai.APIStatusError):
        return None
    if find_overflow(error.status_code, error.body) is not None:
        return None
    has_images = any(message.images for message in request.messages)
    text = json.dumps(error.body, default=str)
    tools = [tool.name for tool in request.tools]
    return dialects.adapted(dialect, error.status_code, error.param, text, has_images=has_images, tools=tools)


async def _close(response: httpx2.Response, *, is_reusable: bool) -> None:
    """Close a response, even while this task is being cancelled, and its connection unless that `is_reusable`."""
    # Some servers end an overflow as an empty stream and then drop the connection, which would fail the next request.
    with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
        await response.aclose()
        network = response.extensions.get("network_stream")
        if not is_reusable and network is not None:
            await network.aclose()


def _is_connection_error(error: BaseException) -> bool:
    import openai

    return isinstance(error, (openai.APIConnectionError, *_of_http("TransportError")))


def _seconds(value: str | None) -> float | None:
    """Return a Retry-After header in seconds; None without one and for a date."""
    try:
        return max(0.0, float(value)) if value else None
    except ValueError:
        return None


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
