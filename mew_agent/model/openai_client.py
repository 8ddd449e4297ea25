"""The one door to model servers: any OpenAI-compatible endpoint behind the `Model` interface.

Owns the client library, the life of a request, and that no error of that library gets out untranslated. What chunks,
failures and model listings mean is in the modules beside it. It keeps no history and no policy. The library is imported
at the first call, so importing this module costs nothing.
"""

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import anyio

from mew_agent.errors import ModelError
from mew_agent.model import dialect as dialects
from mew_agent.model import window as windows
from mew_agent.model.assembly import ReplyAssembly
from mew_agent.model.connection_causes import causes, connection_cause
from mew_agent.model.counting import PromptCounter
from mew_agent.model.failures import Failures
from mew_agent.model.interface import ModelEvent, ModelIdentity, ModelRequest, Window
from mew_agent.model.refusal import overflow_of

if TYPE_CHECKING:
    import httpx2
    import openai

    Chunks: TypeAlias = openai.AsyncStream[object]

OPENAI_BASE_URL = "https://api.openai.com/v1"
_NO_KEY = "no-key"  # the library insists on one; servers without keys do not look at it
_CLOSE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _WholeAnswer:
    """An answer that was not streamed."""

    body: Mapping[str, object]
    request_id: str | None


class OpenAIModel:
    """A model on an OpenAI-compatible server: OpenAI, LM Studio, Ollama, vLLM, llama.cpp, OpenRouter and others.

    `base_url` includes `/v1` where the server has it; None means OpenAI's. The environment is not read: who
    wants `OPENAI_API_KEY` passes it. Times are seconds: to connect, until the first chunk (a long prompt on a
    slow machine takes minutes), between chunks, and for each answer about the window or a count. `max_retries` are the
    library's own, on 408, 409, 429, 5xx and connection errors, before a stream is open. A given `http_client`
    stays the caller's to close.
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
        http_client: "httpx2.AsyncClient | None" = None,
    ) -> None:
        self._model = model
        self._base_url = (base_url or OPENAI_BASE_URL).rstrip("/")
        self._api_key = api_key or None
        self._failures = Failures(_without_credentials(self._base_url), model, self._api_key)
        self._connect_timeout_seconds = connect_timeout_seconds
        self._first_chunk_timeout_seconds = first_chunk_timeout_seconds
        self._idle_timeout_seconds = idle_timeout_seconds
        self._window_timeout_seconds = window_timeout_seconds
        self._max_retries = max_retries
        self._http_client = http_client
        self._client: openai.AsyncOpenAI | None = None
        self._dialect = dialects.dialect_for(urlsplit(self._base_url).hostname or "")
        # llama.cpp's server closes a connection after a stream without saying so, and the next request would be lost
        # on it. Without TLS a new connection costs nothing.
        self._stream_headers = {} if self._base_url.startswith("https:") else {"Connection": "close"}
        self._counter = PromptCounter(self._base_url, model)

    @property
    def identity(self) -> ModelIdentity:
        """Which model it is, and its `base_url` without credentials."""
        return ModelIdentity(self._model, self._failures.endpoint)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Run one call; see `Model.stream`. Raises a `ModelError` when there is no whole reply."""
        assembly = ReplyAssembly(self._model)
        answer = await self._opened(request)
        if isinstance(answer, _WholeAnswer):
            for delta in assembly.feed(answer.body):
                yield delta
            self._raise_error_in(assembly)
            yield assembly.reply(request_id=answer.request_id, is_streamed=False)
            return
        try:
            while (chunk := await self._next_chunk(answer, assembly)) is not None:
                for delta in assembly.feed(chunk):
                    yield delta
                self._raise_error_in(assembly)
            if assembly.finish_reason is None:
                raise self._failures.cut("the stream ended without a finish reason", chunks=assembly.chunks)
        finally:
            await _close(answer, is_reusable=assembly.finish_reason is not None)
        yield assembly.reply(request_id=_request_id(answer.response), is_streamed=True)

    async def discover_window(self) -> Window | None:
        """Ask the server for the window it has loaded, or else trained; None when it does not tell."""
        return await windows.discover_window(self._fetch, self._base_url, self._model)

    async def count_prompt(self, request: ModelRequest) -> int | None:
        """Ask the server for the prompt tokens of `request`; None when it does not tell. See `Model.count_prompt`."""
        return await self._counter.count(self._fetch, request)

    async def aclose(self) -> None:
        """Close the connections; the next call would open new ones."""
        client, self._client = self._client, None
        if client is not None and self._http_client is None:
            await client.close()

    async def _opened(self, request: ModelRequest) -> "Chunks | _WholeAnswer":
        """Send the request, spelled anew for as long as the server's refusal says what it did not understand."""
        dialect = self._dialect
        tried = {dialect}
        while True:
            try:
                with anyio.fail_after(self._first_chunk_timeout_seconds):
                    answer = await self._send(request, dialect)
            except TimeoutError as error:
                raise self._failures.unreachable(f"no answer in {self._first_chunk_timeout_seconds:g} s") from error
            except _vendor_errors() as error:
                other = _other_dialect(dialect, error)
                if other is None or other in tried:
                    raise self._translated(error, offered_tools=bool(request.tools)) from error
                dialect = other
                tried.add(other)
            else:
                self._dialect = dialect
                return answer

    async def _send(self, request: ModelRequest, dialect: dialects.Dialect) -> "Chunks | _WholeAnswer":
        import httpx2
        import openai

        body = dialects.request_body(request, self._model, dialect)
        client = self._connected()
        if not dialect.is_streaming:
            response = await client.post("/chat/completions", cast_to=httpx2.Response, body=body)
            return self._whole_answer(response.content, _request_id(response))
        # Decoded JSON rather than the library's models: providers put things in chunks that those drop or coerce.
        chunks = await client.post(
            "/chat/completions",
            cast_to=object,
            body=body,
            options={"headers": self._stream_headers},
            stream=True,
            stream_cls=openai.AsyncStream[object],
        )
        media_type = chunks.response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type not in ("application/json", "text/html"):
            return chunks
        # The server ignored `stream`, or it is none of ours.
        try:
            content = await chunks.response.aread()
        finally:
            await _close(chunks, is_reusable=True)
        if media_type == "text/html":
            raise self._failures.failed("the answer is a web page, not a completion; is the base URL right?")
        return self._whole_answer(content, _request_id(chunks.response))

    def _whole_answer(self, content: bytes, request_id: str | None) -> _WholeAnswer:
        body = json.loads(content)
        if isinstance(body, Mapping):
            if body.get("error"):
                raise self._failures.inside(body["error"], request_id)
            if isinstance(body.get("choices"), list) and body["choices"]:
                return _WholeAnswer(body, request_id)
        raise self._failures.failed("the answer has no choices", request_id)

    async def _next_chunk(self, chunks: "Chunks", assembly: ReplyAssembly) -> Mapping[str, object] | None:
        """The next chunk; None at the end, also when the connection breaks after the finish reason."""
        limit_seconds = self._idle_timeout_seconds if assembly.chunks else self._first_chunk_timeout_seconds
        try:
            with anyio.fail_after(limit_seconds):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return None
        except TimeoutError as error:
            if assembly.finish_reason is not None:
                return None
            raise self._failures.cut(f"nothing came for {limit_seconds:g} s", chunks=assembly.chunks) from error
        except _vendor_errors() as error:
            if assembly.finish_reason is not None and _is_connection_error(error):
                return None
            raise self._translated(error, chunks_seen=assembly.chunks) from error
        if not isinstance(chunk, Mapping):
            raise self._failures.failed("a chunk of the stream is not a JSON object")
        return chunk

    def _connected(self) -> "openai.AsyncOpenAI":
        if self._client is None:
            import httpx2
            import openai

            timeout = httpx2.Timeout(self._first_chunk_timeout_seconds, connect=self._connect_timeout_seconds)
            http_client = self._http_client
            if http_client is None and _is_loopback(self._base_url):
                # A proxy of the environment cannot reach this machine's own servers.
                http_client = openai.DefaultAsyncHttpxClient(trust_env=False)
            self._client = openai.AsyncOpenAI(
                api_key=self._api_key or _NO_KEY,
                base_url=self._base_url,
                timeout=timeout,
                max_retries=self._max_retries,
                http_client=http_client,
            )
        return self._client

    async def _fetch(self, method: Literal["GET", "POST"], url: str, body: dict[str, object] | None) -> object:
        client = self._connected()
        try:
            with anyio.fail_after(self._window_timeout_seconds):
                if method == "GET":
                    return await client.get(url, cast_to=object, options={"max_retries": 0})
                return await client.post(url, cast_to=object, body=body, options={"max_retries": 0})
        except TimeoutError as error:
            raise self._failures.unreachable(f"no answer in {self._window_timeout_seconds:g} s") from error
        except _vendor_errors() as error:
            raise self._translated(error) from error

    def _translated(
        self, error: BaseException, *, chunks_seen: int | None = None, offered_tools: bool = False
    ) -> ModelError:
        """The `ModelError` for an error of the client library; `chunks_seen` is None until a stream is open."""
        import httpx2
        import openai

        failures = self._failures
        match error:
            case openai.APITimeoutError() | httpx2.TimeoutException() if chunks_seen is None:
                return failures.unreachable(self._timeout_cause(error))
            case openai.APIConnectionError() | httpx2.TransportError():
                cause = connection_cause(error)
                return failures.unreachable(cause) if chunks_seen is None else failures.cut(cause, chunks=chunks_seen)
            case openai.APIStatusError():
                return failures.of_status(
                    error.status_code,
                    error.body,
                    reason=error.response.reason_phrase or "no reason given",
                    request_id=error.request_id,
                    wait_seconds=_seconds(error.response.headers.get("retry-after")),
                    offered_tools=offered_tools,
                )
            case openai.APIResponseValidationError():
                return failures.failed(f"HTTP {error.status_code}: {error.message}", http_status=error.status_code)
            case openai.APIError():
                return failures.inside(error.body or error.message)
            case json.JSONDecodeError() | UnicodeDecodeError():
                return failures.failed("the answer is not valid JSON")
            case _:
                return failures.failed(str(error) or type(error).__name__)

    def _timeout_cause(self, error: BaseException) -> str:
        import httpx2

        if any(isinstance(cause, httpx2.ConnectTimeout) for cause in causes(error)):
            return f"no connection in {self._connect_timeout_seconds:g} s"
        return f"no answer in {self._first_chunk_timeout_seconds:g} s"

    def _raise_error_in(self, assembly: ReplyAssembly) -> None:
        if assembly.error is not None:
            raise self._failures.inside(assembly.error)


def _vendor_errors() -> tuple[type[Exception], ...]:
    """Everything the client library lets out: its own classes, its transport's, and bare decoding errors."""
    import httpx2
    import openai

    return (
        openai.OpenAIError,
        openai.InvalidWebhookSignatureError,
        httpx2.HTTPError,
        httpx2.InvalidURL,
        httpx2.StreamError,
        json.JSONDecodeError,
        UnicodeError,
        OSError,
    )


def _other_dialect(dialect: dialects.Dialect, error: Exception) -> dialects.Dialect | None:
    import openai

    if not isinstance(error, openai.APIStatusError):
        return None
    if overflow_of(error.status_code, error.body) is not None:
        return None
    return dialects.adapted(dialect, error.status_code, error.param, json.dumps(error.body, default=str))


async def _close(chunks: "Chunks", *, is_reusable: bool) -> None:
    """Close a response, also when this task is being cancelled.

    A connection whose stream did not end well is closed with it: servers exist that end an overflow as an empty
    stream and then drop the connection, which would fail the next request on it.
    """
    with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
        await chunks.close()
        network = chunks.response.extensions.get("network_stream")
        if not is_reusable and network is not None:
            await network.aclose()


def _is_connection_error(error: Exception) -> bool:
    import httpx2
    import openai

    return isinstance(error, openai.APIConnectionError | httpx2.TransportError)


def _request_id(response: "httpx2.Response") -> str | None:
    return response.headers.get("x-request-id")


def _seconds(value: str | None) -> float | None:
    """A Retry-After in seconds; None for a date or none."""
    try:
        return max(0.0, float(value)) if value else None
    except ValueError:
        return None


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
