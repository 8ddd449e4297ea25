"""The client for model servers: any OpenAI-compatible endpoint behind the `Model` interface.

Owns the HTTP requests, which failed requests are sent again, and the translation of every failure into a `ModelError`.
Keeps no history and makes no policy decisions.
"""

import functools
import json
import logging
import random
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit, urlunsplit

import anyio
import httpx2

from mew_agent._version import __version__
from mew_agent.errors import ModelError
from mew_agent.model import dialect as dialects
from mew_agent.model import window as windows
from mew_agent.model.assembly import ReplyAssembly
from mew_agent.model.counting import PromptCounter
from mew_agent.model.failures import ModelErrors, connection_cause, find_overflow
from mew_agent.model.interface import ModelEvent, ModelIdentity, ModelRequest, Window

OPENAI_BASE_URL: Final = "https://api.openai.com/v1"
logger = logging.getLogger(__name__)

_CLOSE_SECONDS: Final = 2.0
_AFTER_DONE_SECONDS: Final = 1.0
"""How long to read on after `[DONE]`: some servers send usage then, and the end of the body frees the connection."""

_DONE: Final = b"[DONE]"

_RETRIED_STATUSES: Final = (408, 409, 429)  # and 5xx
_FIRST_RETRY_SECONDS: Final = 0.5
_LONGEST_RETRY_SECONDS: Final = 8.0
_LONGEST_RETRY_AFTER_SECONDS: Final = 60.0
"""A server that asks for a longer wait than this does not get it: the agent must answer."""

_REQUEST_ERRORS: Final = (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, ValueError, OSError)
"""What a request raises: errors of the HTTP library, and of decoding JSON and text."""


@dataclass(frozen=True, slots=True)
class _WholeAnswer:
    """An answer that was not streamed."""

    body: Mapping[str, object]
    request_id: str | None


class OpenAIModel:
    """A model on an OpenAI-compatible server: OpenAI, LM Studio, Ollama, vLLM, llama.cpp, OpenRouter and others.

    `base_url` includes `/v1` where the server has it (default: OpenAI's). The environment is not read; pass
    `OPENAI_API_KEY` yourself. Timeouts are in seconds: to connect, until the first chunk (a long prompt on a slow
    machine takes minutes), between chunks, and for each request about the window or a token count. `max_retries` counts
    retries before a stream is open: on HTTP 408, 409, 429, 5xx and on connection errors. `http_client` replaces the
    HTTP client; closing it is up to the caller.
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
        self._errors = ModelErrors(_without_credentials(self._base_url), model, api_key or None)
        self._headers = {"User-Agent": f"mew-agent/{__version__}"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._connect_timeout_seconds = connect_timeout_seconds
        self._timeout = httpx2.Timeout(first_chunk_timeout_seconds, connect=connect_timeout_seconds)
        self._first_chunk_timeout_seconds = first_chunk_timeout_seconds
        self._idle_timeout_seconds = idle_timeout_seconds
        self._window_timeout_seconds = window_timeout_seconds
        self._max_retries = max_retries
        self._given_client = http_client
        self._own_client: httpx2.AsyncClient | None = None
        self._dialect = dialects.dialect_for(urlsplit(self._base_url).hostname or "")
        # llama.cpp's server closes a connection after a stream without announcing it, and the next request on that
        # connection would fail. Without TLS a new connection is cheap.
        self._stream_headers = {} if self._base_url.startswith("https:") else {"Connection": "close"}
        self._counter = PromptCounter(self._base_url, model)

    @property
    def identity(self) -> ModelIdentity:
        """The model name and the `base_url` without credentials."""
        return ModelIdentity(self._model, self._errors.endpoint)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Run one call; see `Model.stream`. Raises a `ModelError` if the reply is missing or incomplete."""
        assembly = ReplyAssembly(self._model)
        answer = await self._open(request)
        if isinstance(answer, _WholeAnswer):
            for delta in assembly.feed(answer.body):
                yield delta
            self._raise_error_in(assembly)
            yield assembly.reply(request_id=answer.request_id, is_streamed=False)
            return
        try:
            async with aclosing(_events(answer)) as events:
                while (chunk := await self._next_chunk(events, assembly)) is not None:
                    for delta in assembly.feed(chunk):
                        yield delta
                    self._raise_error_in(assembly)
            if assembly.finish_reason is None:
                raise self._errors.cut("the stream ended without a finish reason", chunks=assembly.chunks)
        finally:
            await _close(answer, is_reusable=assembly.finish_reason is not None)
        yield assembly.reply(request_id=_request_id(answer), is_streamed=True)

    async def discover_window(self) -> Window | None:
        """Ask the server for the loaded window, or else the trained one; see `Model.discover_window`."""
        return await windows.discover_window(self._fetch, self._base_url, self._model)

    async def count_prompt(self, request: ModelRequest) -> int | None:
        """Ask the server for the prompt tokens of `request`; see `Model.count_prompt`."""
        return await self._counter.count(self._fetch, request)

    async def aclose(self) -> None:
        """Close the connections. A later call opens new ones."""
        client, self._own_client = self._own_client, None
        if client is not None:
            await client.aclose()

    async def _open(self, request: ModelRequest) -> httpx2.Response | _WholeAnswer:
        """Send the request. Retry in another dialect as long as the server names an argument that it rejects."""
        dialect = self._dialect
        # A server may reject both names of the token limit in turn; each dialect is tried once.
        tried = {dialect}
        while True:
            try:
                with anyio.fail_after(self._first_chunk_timeout_seconds):
                    answer = await self._send(request, dialect)
            except TimeoutError as error:
                raise self._errors.unreachable(f"no answer in {self._first_chunk_timeout_seconds:g} s") from error
            except _REQUEST_ERRORS as error:
                other = _other_dialect(dialect, error, request)
                if other is None or other in tried:
                    raise self._translated(error, offered_tools=bool(request.tools)) from error
                if dialect.takes_images and not other.takes_images:
                    logger.warning("'%s' takes no images; prompts only name them (%s)", self._model, error)
                dialect = other
                tried.add(other)
            else:
                self._dialect = dialect
                return answer

    async def _send(self, request: ModelRequest, dialect: dialects.Dialect) -> httpx2.Response | _WholeAnswer:
        response = await self._post_completion(dialects.request_body(request, self._model, dialect), dialect)
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if dialect.is_streaming and media_type not in ("application/json", "text/html"):
            return response
        # Not streamed, or the server ignored `stream`, or it is not a model server.
        try:
            content = await response.aread()
        finally:
            await _close(response, is_reusable=True)
        if dialect.is_streaming and media_type == "text/html":
            raise self._errors.failed("the answer is a web page, not a completion; is the base URL right?")
        return self._whole_answer(content, _request_id(response))

    async def _post_completion(self, body: Mapping[str, object], dialect: dialects.Dialect) -> httpx2.Response:
        """The open response to a completion request. Sends it again after a failure that may pass."""
        client = self._client()
        headers = self._headers | (self._stream_headers if dialect.is_streaming else {})
        url = f"{self._base_url}/chat/completions"
        attempt = 0
        while True:
            request = client.build_request("POST", url, json=body, headers=headers, timeout=self._timeout)
            try:
                response = await client.send(request, stream=True, follow_redirects=True)
                if response.is_success:
                    return response
                await response.aread()
                response.raise_for_status()
            except (httpx2.HTTPStatusError, httpx2.TransportError) as error:
                seconds = _seconds_before_retry(error, attempt)
                if attempt == self._max_retries or seconds is None:
                    raise
                await anyio.sleep(seconds)
                attempt += 1

    def _whole_answer(self, content: bytes, request_id: str | None) -> _WholeAnswer:
        body = json.loads(content)
        if isinstance(body, Mapping):
            if body.get("error"):
                raise self._errors.from_body(body["error"], request_id)
            if isinstance(body.get("choices"), list) and body["choices"]:
                return _WholeAnswer(body, request_id)
        raise self._errors.failed("the answer has no choices", request_id)

    async def _next_chunk(
        self, events: AsyncGenerator[bytes, None], assembly: ReplyAssembly
    ) -> Mapping[str, object] | None:
        """The next chunk, or None at the end. A connection that breaks after the finish reason is an end, too."""
        limit_seconds = self._idle_timeout_seconds if assembly.chunks else self._first_chunk_timeout_seconds
        if assembly.is_done:
            limit_seconds = min(limit_seconds, _AFTER_DONE_SECONDS)
        try:
            with anyio.fail_after(limit_seconds):
                data = await anext(events)
            if data.startswith(_DONE):
                assembly.is_done = True
                return await self._next_chunk(events, assembly)
            chunk = json.loads(data)
        except StopAsyncIteration:
            return None
        except TimeoutError as error:
            if assembly.finish_reason is not None or assembly.is_done:
                return None
            raise self._errors.cut(f"no data for {limit_seconds:g} s", chunks=assembly.chunks) from error
        except _REQUEST_ERRORS as error:
            if assembly.is_done or (assembly.finish_reason is not None and isinstance(error, httpx2.TransportError)):
                return None
            raise self._translated(error, chunks_seen=assembly.chunks) from error
        if not isinstance(chunk, Mapping):
            raise self._errors.failed("a chunk of the stream is not a JSON object")
        if chunk.get("error"):
            raise self._errors.from_body(chunk["error"])
        return chunk

    def _client(self) -> httpx2.AsyncClient:
        if self._given_client is not None:
            return self._given_client
        if self._own_client is None:
            # A proxy from the environment cannot reach servers on this machine.
            self._own_client = httpx2.AsyncClient(
                verify=_trusted_certificates(), trust_env=not _is_loopback(self._base_url)
            )
        return self._own_client

    async def _fetch(self, method: Literal["GET", "POST"], url: str, body: dict[str, object] | None) -> object:
        """One request about the window or a token count; see `Fetch`."""
        try:
            with anyio.fail_after(self._window_timeout_seconds):
                response = await self._client().request(
                    method, url, json=body, headers=self._headers, timeout=self._timeout, follow_redirects=True
                )
            response.raise_for_status()
            return response.json()
        except TimeoutError as error:
            raise self._errors.unreachable(f"no answer in {self._window_timeout_seconds:g} s") from error
        except _REQUEST_ERRORS as error:
            raise self._translated(error) from error

    def _translated(
        self, error: BaseException, *, chunks_seen: int | None = None, offered_tools: bool = False
    ) -> ModelError:
        """The `ModelError` for one of `_REQUEST_ERRORS`. `chunks_seen` is None until a stream is open."""
        match error:
            case httpx2.HTTPStatusError(response=response):
                return self._errors.from_status(
                    response.status_code,
                    _error_body(response),
                    reason=response.reason_phrase or "no reason given",
                    request_id=_request_id(response),
                    wait_seconds=_retry_after_seconds(response),
                    offered_tools=offered_tools,
                )
            case httpx2.RequestError():
                return self._connection_error(error, chunks_seen)
            case json.JSONDecodeError() | UnicodeDecodeError():
                return self._errors.failed("the answer is not valid JSON")
            case _:
                return self._errors.failed(str(error) or type(error).__name__)

    def _connection_error(self, error: httpx2.RequestError, chunks_seen: int | None) -> ModelError:
        if chunks_seen is not None:
            return self._errors.cut(connection_cause(error), chunks=chunks_seen)
        if not isinstance(error, httpx2.TimeoutException):
            return self._errors.unreachable(connection_cause(error))
        if isinstance(error, httpx2.ConnectTimeout):
            return self._errors.unreachable(f"no connection in {self._connect_timeout_seconds:g} s")
        return self._errors.unreachable(f"no answer in {self._first_chunk_timeout_seconds:g} s")

    def _raise_error_in(self, assembly: ReplyAssembly) -> None:
        if assembly.error is not None:
            raise self._errors.from_body(assembly.error)


async def _events(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """The data of each server-sent event, also of those after `[DONE]`."""
    rest = b""
    data: list[bytes] = []
    async for piece in response.aiter_bytes():
        lines = (rest + piece).splitlines(keepends=True)
        rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        for line in lines:
            name, _, value = line.rstrip(b"\r\n").partition(b":")
            if name == b"data":
                data.append(value.removeprefix(b" "))
            elif not line.strip() and data:
                yield b"\n".join(data)
                data = []


@functools.cache
def _trusted_certificates() -> ssl.SSLContext:
    """The certificates that clients trust by default. To load them takes 20 ms, so that clients share them."""
    return httpx2.create_ssl_context()


def _other_dialect(dialect: dialects.Dialect, error: Exception, request: ModelRequest) -> dialects.Dialect | None:
    if not isinstance(error, httpx2.HTTPStatusError):
        return None
    status, body = error.response.status_code, _error_body(error.response)
    if find_overflow(status, body) is not None:
        return None
    has_images = any(message.images for message in request.messages)
    param = body.get("param") if isinstance(body, Mapping) else None
    return dialects.adapted(dialect, status, param, json.dumps(body), has_images=has_images)


def _error_body(response: httpx2.Response) -> object:
    """The `error` object of an error response, or else its whole JSON or text."""
    try:
        body = response.json()
    except ValueError:
        return response.text
    return body.get("error", body) if isinstance(body, Mapping) else body


def _seconds_before_retry(error: httpx2.HTTPStatusError | httpx2.TransportError, attempt: int) -> float | None:
    """How long to wait before another attempt; None if it would fail, too. Attempts are numbered from 0."""
    backoff_seconds = min(_FIRST_RETRY_SECONDS * 2**attempt, _LONGEST_RETRY_SECONDS) * random.uniform(0.75, 1)  # noqa: S311
    if not isinstance(error, httpx2.HTTPStatusError):
        return None if isinstance(error, httpx2.UnsupportedProtocol) else backoff_seconds
    response = error.response
    # OpenAI says with this header what the status alone does not.
    advice = response.headers.get("x-should-retry")
    if advice == "false" or (advice != "true" and not _may_pass(response.status_code)):
        return None
    wanted_seconds = _retry_after_seconds(response) or backoff_seconds
    return wanted_seconds if wanted_seconds <= _LONGEST_RETRY_AFTER_SECONDS else None


def _may_pass(status: int) -> bool:
    return status in _RETRIED_STATUSES or status >= 500


async def _close(response: httpx2.Response, *, is_reusable: bool) -> None:
    """Close a response, even while this task is being cancelled, and its connection unless that `is_reusable`."""
    # Some servers end an overflow as an empty stream and then drop the connection, which would fail the next request.
    with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
        await response.aclose()
        network = response.extensions.get("network_stream")
        if not is_reusable and network is not None:
            await network.aclose()


def _request_id(response: httpx2.Response) -> str | None:
    return response.headers.get("x-request-id")


def _retry_after_seconds(response: httpx2.Response) -> float | None:
    """A Retry-After header in seconds; None without one and for a date."""
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return None


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
