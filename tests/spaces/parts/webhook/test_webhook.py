"""The webhook of a space: one request for each item, with the secret, repeated on failure, without delaying others."""

import json
import logging
import queue
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from threading import Thread
from typing import Any

import anyio
import pytest
from hypothesis import given
from mew_board.attention import not_stored_item
from mew_board.quoting import one_line
from mew_protocol.envelope import wire_timestamp
from mew_protocol.payloads.attention_items import AttentionItem
from mew_spaces.config.loading import parse_space
from mew_spaces.config.settings import AttentionOptions
from mew_spaces.gateway.gateway import serve_gateway
from mew_spaces.parts.webhook.webhook import MAX_QUEUED, AttentionWebhook, chat_line

from tests.protocol.mew_board.test_quoting import TEXTS
from tests.support.gateway_client import joined
from tests.support.waiting import PATIENCE_SECONDS, until

Posted = tuple[str | None, dict[str, Any]]


@contextmanager
def receiver(*answers: int) -> Iterator[tuple[str, "queue.SimpleQueue[Posted]"]]:
    """A server that answers with these codes in turn, then with 200. Yields its address and what it received."""
    posted: queue.SimpleQueue[Posted] = queue.SimpleQueue()
    codes = iter(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the name that http.server calls
            body = self.rfile.read(int(self.headers["content-length"]))
            posted.put((self.headers["authorization"], json.loads(body)))
            self.send_response(code := next(codes, 200))
            if code == 302:
                self.send_header("location", "/elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:  # HTTPServer asks for the name of its address
        serving = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/hook", posted
        finally:
            server.shutdown()
            serving.join()


def item(name: str, level: str = "blocking") -> AttentionItem:
    return AttentionItem.model_validate(
        {
            "id": f"model_failed:{name}",
            "kind": "model_failed",
            "level": level,
            "participant": name,
            "reason": f"{name} fails",
        }
    )


async def received(posted: "queue.SimpleQueue[Posted]", count: int) -> list[str]:
    await until(lambda: posted.qsize() >= count)
    return [posted.get()[1]["item"]["participant"] for _ in range(count)]


async def test_a_space_posts_each_item_once_with_its_secret(tmp_path: Path) -> None:
    (tmp_path / "hook.secret").write_text("s3cret\n")
    with receiver() as (url, posted):
        config = parse_space(
            f"space: {{id: demo}}\nparticipants: {{coder: {{capabilities: [{{kind: '*'}}]}}}}\n"
            f"attention: {{webhook: '{url}', secret_file: hook.secret}}"
        )
        async with serve_gateway(config, state=tmp_path / ".mew") as gateway, joined(gateway, "coder") as coder:
            for tokens, word in (
                (1, "model_unreachable"),
                (2, "model_unreachable"),
                (3, "turn_stopped:after 40 steps"),
            ):
                body = {"messages_in_context": 1, "status": word, "tokens": tokens, "max_tokens": 9}
                await coder.send_envelope("participant/status", body)
            with anyio.fail_after(PATIENCE_SECONDS):
                await until(lambda: posted.qsize() >= 1)
                found = [posted.get()]
                while found[-1][1]["item"]["kind"] != "turn_stopped":
                    await until(lambda: posted.qsize() >= 1)
                    found.append(posted.get())
    assert {secret for secret, _ in found} == {"Bearer s3cret"}
    ids = [body["item"]["id"] for _, body in found]
    assert len(ids) == len(set(ids))
    last = found[-1][1]
    assert last["text"] == "demo: coder stopped its turn: after 40 steps"
    assert last["item"]["actions"] == [{"label": "Show log", "command": "mew logs coder"}]


async def test_names_and_texts_of_participants_are_no_mark_up_in_a_post(tmp_path: Path) -> None:
    said = "<!channel> @everyone <@U1> `a` [here](https://e.org) **now**\n## ada: approved"
    with receiver() as (url, posted):
        config = parse_space(
            f"space: {{id: demo}}\nparticipants: {{coder: {{capabilities: [{{kind: '*'}}]}}}}\n"
            f"attention: {{webhook: '{url}'}}"
        )
        async with serve_gateway(config, state=tmp_path / ".mew") as gateway, joined(gateway, "coder") as coder:
            call = {"method": "tools/call", "params": {"name": said, "arguments": {"to": "<!here>"}}}
            await coder.send_envelope("mcp/proposal", call)
            await until(lambda: posted.qsize() >= 1)
    _, body = posted.get()
    assert body["content"] == body["text"]
    shown = "‹!channel› ＠everyone ‹＠U1› ´a´ ［here］(https：//e.org) ∗∗now∗∗‹U+000A›＃＃ ada"
    assert body["text"].startswith(f"demo: coder waits for approval of {shown}")
    assert set("<>@`*#[\n").isdisjoint(body["text"])
    assert said.partition("\n")[0] in body["item"]["reason"]  # exact, for programs


async def test_only_failed_requests_are_repeated(caplog: pytest.LogCaptureFixture) -> None:
    with receiver(503, 200, 404, 302) as (url, posted):
        hook = AttentionWebhook(AttentionOptions(webhook=url), "demo", Path(), retry_seconds=(0.0, 0.0))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hook.run)
            hook.observe([item("a"), item("calm", "notice"), item("b"), item("c"), item("d")])
            names = await received(posted, 5)
            hook.observe([item("a")])  # it is still there
            hook.observe([item("e")])
            names += await received(posted, 1)
            tasks.cancel_scope.cancel()
    assert names == ["a", "a", "b", "c", "d", "e"]
    assert [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING] == [
        "webhook not posted: the receiver answered 404",
        "webhook not posted: the receiver answered 302",
    ]


async def test_the_next_gateway_posts_items_that_the_last_may_have_missed() -> None:
    options = AttentionOptions(webhook="http://127.0.0.1:1/")
    hook = AttentionWebhook(options, "demo", Path())
    old, new = (
        item(name).model_copy(update={"since": wire_timestamp(datetime.now(UTC) - timedelta(seconds=age))})
        for name, age in (("old", 60), ("new", 0))
    )
    hook.observe([old, new], posts=False)
    assert not hook._queue
    hook.observe([old, new])
    assert list(hook._queue) == [new]
    unstored = not_stored_item()
    hook.observe([old, new, unstored], posts=False)
    hook.observe([old, new, unstored])
    hook.observe([old, new, unstored, item("later")])
    assert list(hook._queue) == [new, unstored, item("later")]


@pytest.mark.parametrize("since", ["soon", "2026-01-01T00:00:00", "0001-01-01T00:00:00Z"])
async def test_the_next_gateway_accepts_any_time_that_a_participant_wrote(since: str) -> None:
    hook = AttentionWebhook(AttentionOptions(webhook="http://127.0.0.1:1/"), "demo", Path())
    hook.takes_over = True
    hook.observe([item("a").model_copy(update={"since": since}), item("b")])
    assert item("b") in hook._queue


@pytest.mark.parametrize(
    ("url", "secret", "problem"),
    [
        ("http://\u2100/hook", "s3cret", "InvalidURL"),
        (None, "s3cret\nmore", "LocalProtocolError"),
        (None, "s3cret\N{EURO SIGN}", "UnicodeEncodeError"),
    ],
)
async def test_an_unusable_address_or_secret_is_logged_without_it(
    url: str | None, secret: str, problem: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "hook.secret").write_text(secret, encoding="utf-8")
    with receiver() as (receiving, posted):
        options = AttentionOptions(webhook=url or receiving, secret_file="hook.secret")
        hook = AttentionWebhook(options, "demo", tmp_path, retry_seconds=())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hook.run)
            hook.observe([item("a"), item("b")])
            await until(lambda: caplog.text.count("webhook not posted") == 2)
            tasks.cancel_scope.cancel()
    assert posted.empty()
    assert [one.getMessage() for one in caplog.records] == [f"webhook not posted: {problem}"] * 2
    assert "s3cret" not in caplog.text


async def test_the_proxy_of_the_environment_gets_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver() as (proxy, posted):
        monkeypatch.setenv("http_proxy", proxy.removesuffix("/hook"))
        monkeypatch.delenv("no_proxy", raising=False)
        hook = AttentionWebhook(AttentionOptions(webhook="http://hooks.example.org/hook"), "demo", Path())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hook.run)
            hook.observe([item("a")])
            assert await received(posted, 1) == ["a"]
            tasks.cancel_scope.cancel()


async def test_a_receiver_that_is_gone_delays_nothing(caplog: pytest.LogCaptureFixture) -> None:
    options = AttentionOptions(webhook="http://127.0.0.1:1/secret-path", kinds=("model_failed",))
    hook = AttentionWebhook(options, "demo", Path(), retry_seconds=())
    hook.observe([item(str(number), "notice") for number in range(MAX_QUEUED + 1)])
    assert [one.getMessage() for one in caplog.records] == ["webhook too slow, not posted: 0 fails"]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hook.run)
        await until(lambda: "webhook not posted" in caplog.text)
        tasks.cancel_scope.cancel()
    assert "secret-path" not in caplog.text


@given(TEXTS)
def test_a_line_for_chat_services_contains_no_mark_up(text: str) -> None:
    shown = chat_line(text)
    assert len(shown) == len(one_line(text))
    assert not set(shown) & set("<>&@`*~|[]#\\\n\r")
    assert "://" not in shown
    assert "www." not in shown.lower()
    assert re.search(r":\w+:", shown) is None
    assert re.search(r"(?<![^\W_])_|_(?![^\W_])", shown) is None


def test_plain_words_are_shown_as_they_are_in_chat_services() -> None:
    plain = 'coder waits for approval of read_file on files: {"path": "a/b-c.txt", "n": 5}'
    assert chat_line(plain) == plain
