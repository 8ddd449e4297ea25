"""Posts attention items to a webhook, one request each.

Selects the items, posts them, and retries failed requests. A slow receiver only delays further posts; posts above the
queue limit are dropped with a log line.
"""

import json
import logging
import math
import re
import ssl
import time
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2
from anyio import to_thread
from mew_board.quoting import one_line
from mew_listener.bounded_dict import BoundedDict
from mew_protocol.envelope import unix_seconds, wire_timestamp
from mew_protocol.payloads.attention_items import AttentionItem

from mew_spaces.config.settings import AttentionOptions

log = logging.getLogger("mew_spaces")

_CHAT_MARKUP: Final = str.maketrans(dict(zip("<>&@`*~|[]#\\", "‹›＆＠´∗∼¦［］＃＼", strict=True)))
_CHAT_EMPHASIS: Final = re.compile(r"_(?![^\W_])|(?<![^\W_])_")
_CHAT_LINK: Final = re.compile(r":(?=//)|:(?=\w+:)|(?<=www)\.", re.IGNORECASE)

TIMEOUT_SECONDS: Final = 10.0
"""How long one request may take."""

RETRY_SECONDS: Final = (1.0, 10.0, 60.0)
"""Pauses before the second and later tries."""

MAX_QUEUED: Final = 100
"""How many requests may wait."""

MAX_REMEMBERED: Final = 10_000
"""Of how many items it is remembered that they were posted."""

REPEAT_SECONDS: Final = 300.0
"""An item that was gone for less than this is not posted again."""

TAKEOVER_SECONDS: Final = 12.0
"""How long it may take until another gateway knows that the one that posts was killed."""

_MAX_SECRET_BYTES: Final = 4096


class AttentionWebhook:
    """The webhook of one space. `observe` notes new items, `run` posts them."""

    def __init__(
        self, options: AttentionOptions, space: str, folder: Path, *, retry_seconds: Iterable[float] = RETRY_SECONDS
    ) -> None:
        """`secret_file` is relative to `folder`."""
        self._options = options
        self._space = space
        self._folder = folder
        self._retry_seconds = tuple(retry_seconds)
        self._queue: deque[AttentionItem] = deque()
        self._seen: BoundedDict[str, tuple[float, bool]] = BoundedDict(MAX_REMEMBERED)
        """When each item was last there, and whether it is posted."""
        self.takes_over = False
        """Whether another gateway of the space has posted so far."""
        self._arrived = anyio.Event()

    def observe(self, items: Iterable[AttentionItem], *, posts: bool = True) -> None:
        """Queue new items of the posted kinds.

        Without `posts`, items are only noted, because another gateway posts them. A gateway that takes over posts items
        of the last seconds, because the other one may have been killed before. Each gateway posts its own storage
        failures.
        """
        now = anyio.current_time()
        for item in filter(self._is_wanted, items):
            if self._is_due(item, now, is_own=posts or item.kind == "not_stored"):
                if len(self._queue) >= MAX_QUEUED:
                    log.warning("webhook too slow, not posted: %s", self._queue.popleft().reason)
                self._queue.append(item)
        self.takes_over = not posts
        if self._queue:
            self._arrived.set()

    def _is_due(self, item: AttentionItem, now: float, *, is_own: bool) -> bool:
        """Note a current item, and return whether to post it. `is_own`: this gateway posts it."""
        seen_at, is_posted = self._seen.get(item.id, (-math.inf, False))
        is_new = now - seen_at > REPEAT_SECONDS
        self._seen[item.id] = now, is_own or (is_posted and not is_new)
        return is_own and ((is_new and not self.takes_over) or (not is_posted and _is_recent(item)))

    async def run(self) -> None:
        """Post queued items until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived = anyio.Event()
            while self._queue:
                await self._post(self._queue.popleft())

    def _is_wanted(self, item: AttentionItem) -> bool:
        return item.level != "notice" if self._options.kinds is None else item.kind in self._options.kinds

    async def _post(self, item: AttentionItem) -> None:
        at = wire_timestamp(datetime.now(UTC))
        # Slack, Mattermost and Teams display `text`, Discord displays `content`. `item` has the exact words.
        text = chat_line(f"{self._space}: {item.reason}")
        told = {"text": text, "content": text, "space": self._space, "at": at, "item": _as_json(item)}
        body = json.dumps(told).encode()
        for pause in (*self._retry_seconds, None):
            problem, is_final = await self._request(body)
            if problem is None:
                return
            if is_final or pause is None:
                log.warning("webhook not posted: %s", problem)
                return
            await anyio.sleep(pause)

    async def _request(self, body: bytes) -> tuple[str | None, bool]:
        """Make one request. Returns the problem, and True if a retry is useless. Does not read the response body."""
        assert self._options.webhook is not None
        try:
            headers, trusted = await to_thread.run_sync(self._prepared)
            # A client follows no redirect: the secret is for the configured address only.
            async with httpx2.AsyncClient(verify=trusted, timeout=TIMEOUT_SECONDS) as client:
                with anyio.fail_after(TIMEOUT_SECONDS):
                    async with client.stream("POST", self._options.webhook, content=body, headers=headers) as answer:
                        code = answer.status_code
        except (httpx2.HTTPError, httpx2.InvalidURL, ImportError, OSError, ValueError) as error:
            return _cause(error), False
        if answer.is_success:
            return None, True
        may_pass = code >= HTTPStatus.INTERNAL_SERVER_ERROR or code == HTTPStatus.TOO_MANY_REQUESTS
        return f"the receiver answered {code}", not may_pass

    def _prepared(self) -> tuple[dict[str, str], ssl.SSLContext]:
        """Return the headers with the secret, and the certificates to trust. Reads files."""
        headers = {"Content-Type": "application/json", "User-Agent": "mew-gateway"}
        if self._options.secret_file is not None:
            with (self._folder / self._options.secret_file).open(encoding="utf-8") as file:
                headers["Authorization"] = f"Bearer {file.read(_MAX_SECRET_BYTES).strip()}"
        return headers, ssl.create_default_context()


def _cause(error: BaseException) -> str:
    """Return the system error that caused an error, else the error's class.

    Messages of errors may contain the secret or the path of the URL.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__


def _is_recent(item: AttentionItem) -> bool:
    began = (unix_seconds(one.since) for one in item.items or (item,))  # None: a participant wrote something else
    return any(one is None or time.time() - one < TAKEOVER_SECONDS for one in began)


def _as_json(item: AttentionItem) -> dict[str, Any]:
    """Return an item without its long parts: envelopes of actions, items of a group."""
    actions = [one.model_dump(mode="json", include={"label", "command"}, exclude_unset=True) for one in item.actions]
    return {**item.model_dump(mode="json", exclude_unset=True, exclude={"actions", "items"}), "actions": actions}


def chat_line(text: str) -> str:
    """Return a text as one line for Slack, Discord, Teams and similar services, without mentions, links or mark-up.

    These services share no escape syntax, so each character that one of them reads as mark-up becomes a look-alike:
    `<!channel>` becomes `‹!channel›`.
    """
    plain = _CHAT_EMPHASIS.sub("＿", one_line(text).translate(_CHAT_MARKUP))
    return _CHAT_LINK.sub(lambda found: "：" if found[0] == ":" else "․", plain)
