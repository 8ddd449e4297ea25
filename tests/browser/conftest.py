"""Chromium, a gateway, and members that send what a test chooses."""

import json
import os
import shutil
import socket
import sys
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal, Protocol

import anyio
import pytest
from axe_playwright_python.async_playwright import Axe
from mew_protocol import kinds
from mew_protocol.join import join_frame
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.gateway import DEFAULT_HOST, RunningGateway, serve_gateway
from playwright.async_api import (
    BrowserContext,
    ConsoleMessage,
    Error,
    JSHandle,
    Page,
    Request,
    async_playwright,
    expect,
)
from websockets.asyncio.client import ClientConnection, connect

from tests.browser.scripts import CONTRAST, FRESH, RESTORE, VIOLATIONS
from tests.support.waiting import PATIENCE_SECONDS

expect.set_options(timeout=PATIENCE_SECONDS * 1000)

HOSTILE = "<img src=x onerror=document.title='owned'>"
"""HTML that would run if the page parsed it. Also the id of a participant, as the wire allows; space.yaml does not."""

SPACE = """
space: {id: review, name: Review room}
participants:
  ada: {capabilities: [{kind: "*"}, {kind: "participant/*"}]}
  eve: {capabilities: [{kind: chat}]}
  coder: {command: "true", capabilities: [{kind: "*"}, {kind: "participant/*"}]}
  writer: {command: "true", capabilities: [{kind: "*"}, {kind: "participant/*"}]}
  hostile: {command: "true", capabilities: [{kind: "*"}, {kind: "participant/*"}]}
"""

CHROMIUM_ARGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Two pages of the browser itself, which each start a process; the others are those that Playwright disables.
    (
        "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup,PaintHolding,MediaRouter,OptimizationHints,HttpsUpgrades,"
        "HttpsFirstBalancedModeAutoEnable,LensOverlay,AimEnabled,NetworkTimeServiceQuerying,PreconnectToSearch,"
        "DestroyProfileOnBrowserClose,AvoidUnnecessaryBeforeUnloadCheckSync,ThirdPartyStoragePartitioning"
    ),
    "--js-flags=--no-regexp-optimization",  # other browsers lack it, and the linear time of expressions is measured
)


class Member:
    """A participant that sends what a test chooses."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def send_envelope(
        self,
        kind: str,
        payload: dict[str, Any],
        *,
        to: Sequence[str] = (),
        about: Sequence[str] = (),
        context: str | None = None,
    ) -> None:
        """Send one envelope."""
        headers = {"to": list(to), "correlation_id": list(about), "context": context}
        envelope = {"kind": kind, "payload": payload, **headers}
        await self._socket.send(json.dumps({key: value for key, value in envelope.items() if value}))

    async def request(self, kind: str, payload: dict[str, Any], *, to: Sequence[str]) -> str:
        """Send an envelope with an id, to which an answer can refer. Returns the id."""
        request_id = uuid.uuid4().hex
        envelope = {"id": request_id, "kind": kind, "payload": payload, "to": list(to)}
        await self._socket.send(json.dumps(envelope))
        return request_id

    async def send_frame(self, stream: str, value: dict[str, Any]) -> None:
        """Send one frame of a stream."""
        await self._socket.send(f"#{stream}#{json.dumps(value)}")

    async def report(self, *, to: Sequence[str] = (), about: Sequence[str] = (), **status: Any) -> None:
        """Send a status; `messages_in_context` is 3 by default."""
        await self.send_envelope(kinds.PARTICIPANT_STATUS, {"messages_in_context": 3, **status}, to=to, about=about)

    async def received(self, kind: str) -> dict[str, Any]:
        """Wait for the next envelope of a kind."""
        with anyio.fail_after(PATIENCE_SECONDS):
            async for frame in self._socket:
                envelope: dict[str, Any] = json.loads(frame)
                if envelope.get("kind") == kind:
                    return envelope
        raise AssertionError(f"the gateway closed before any {kind} came")


class Join(Protocol):
    """`join("coder")`: a member while the block runs."""

    def __call__(self, participant: str) -> AbstractAsyncContextManager[Member]: ...


class OpenDashboard(Protocol):
    """`open_dashboard("ada")`: opens the dashboard from a link, as this participant."""

    async def __call__(self, participant: str = "ada", *, token: str | None = None) -> Page: ...


class Tab:
    """A page, with the URLs it requested and the errors it logged."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.addresses: list[str] = []
        self._listeners: dict[Any, Any] = {"console": self._log, "pageerror": self._fail, "request": self._request}
        for event, listener in self._listeners.items():
            page.on(event, listener)

    def close(self) -> None:
        """Stop listening to the page."""
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)

    def _log(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _fail(self, error: Error) -> None:
        self.complaints.append(f"uncaught: {error}")

    def _request(self, request: Request) -> None:
        self.addresses.append(request.url)


class Loaded:
    """Whether the page is loaded and as it was before anybody signed in. Loading it costs more than most tests do."""

    def __init__(self) -> None:
        self.fresh: JSHandle | None = None

    async def load(self, page: Page, address: str) -> None:
        """Load the page unless it is loaded."""
        if self.fresh is None or page.url != address:
            await page.goto(address)
            self.fresh = await page.evaluate_handle(FRESH)

    async def restore(self, page: Page) -> None:
        """Remove what a test has left in the page; if that is not possible, the page."""
        try:
            if self.fresh is not None:
                await page.evaluate(RESTORE, self.fresh)
                return
        except Error:  # the test has loaded another page, or the same again, or left what only that removes
            self.fresh = None
        await page.evaluate("localStorage.clear(), sessionStorage.clear()")  # another gateway may get the same port
        await page.goto("about:blank")


AXE = Axe()

COLOUR_RULES = ["color-contrast", "link-in-text-block"]
"""The rules of accessibility whose outcome depends on colours."""


async def inaccessible(page: Page, *, schemes: Sequence[Literal["light", "dark"]] = ("dark", "light")) -> list[Any]:
    """What breaks a rule of accessibility in some colour schemes, the last of which stays."""
    problems: list[Any] = []
    for scheme in schemes:
        await page.emulate_media(color_scheme=scheme)
        which = {} if scheme == "light" else {"runOnly": COLOUR_RULES}  # nodes and roles are the same in both
        if await page.evaluate("window.axe === undefined"):
            await page.evaluate(AXE.axe_script)
        found = await page.evaluate(VIOLATIONS, {"resultTypes": ["violations"], **which})
        problems += [(scheme, *one) for one in found]
        problems += [(scheme, one) for one in await page.evaluate(CONTRAST)]
    return problems


def chromium_path() -> str | None:
    """Return the path of an installed Chromium."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return os.environ.get("CHROMIUM") or next((found for name in names if (found := shutil.which(name))), None)


@pytest.fixture(scope="package")
async def context() -> AsyncIterator[BrowserContext]:
    """One Chromium with one page for all tests of a worker; a context for each test would double their cost."""
    path = chromium_path()
    if path is None:
        pytest.skip("no Chromium found: install one (`apt-get install chromium`) or set CHROMIUM to its path")
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=path, args=CHROMIUM_ARGS)
        context = await running.new_context(locale="en-GB")
        context.set_default_timeout(PATIENCE_SECONDS * 1000)
        await context.new_page()
        yield context
        await running.close()


@pytest.fixture(scope="package")
async def sign_in_page(context: BrowserContext) -> AsyncIterator[Page]:
    """The page before anybody signs in, for all tests that only call functions of its modules."""
    assert context.browser is not None
    async with serve_gateway(parse_space(SPACE)) as gateway, await context.browser.new_context() as other:
        page = await other.new_page()
        await page.goto(f"{gateway.url}/dashboard")
        yield page


@pytest.fixture(scope="session")
def config() -> SpaceConfig:
    """The space of these tests."""
    config = parse_space(SPACE)
    named = {HOSTILE if name == "hostile" else name: one for name, one in config.participants.items()}
    return config.model_copy(update={"participants": named})


@pytest.fixture(scope="package")
def port() -> Iterator[int]:
    """The port of each gateway of a worker, which nobody else gets between two of them.

    0 where two sockets cannot have one port: each gateway takes another, and each test loads the page.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((DEFAULT_HOST, 0))
        yield holder.getsockname()[1] if sys.platform == "linux" else 0


@pytest.fixture
async def gateway(config: SpaceConfig, port: int) -> AsyncIterator[RunningGateway]:
    """A gateway for one test."""
    async with serve_gateway(config, port=port) as running:
        yield running


@pytest.fixture(scope="package")
def loaded() -> Loaded:
    """The page of a worker."""
    return Loaded()


@pytest.fixture
async def tab(context: BrowserContext, loaded: Loaded) -> AsyncIterator[Tab]:
    """The page, without what an earlier test left: nodes, storage, routes, media, permissions."""
    page = context.pages[0]
    await page.set_viewport_size({"width": 1280, "height": 800})
    await page.emulate_media(color_scheme="null", reduced_motion="null")
    tab = Tab(page)
    yield tab
    tab.close()
    await page.unroute_all()
    await loaded.restore(page)
    for other in context.pages[1:]:
        await other.close()
    await context.clear_permissions()


@pytest.fixture
def open_dashboard(gateway: RunningGateway, tab: Tab, loaded: Loaded) -> OpenDashboard:
    """Opens the dashboard from a link and waits until it is live."""

    async def open_as(participant: str = "ada", *, token: str | None = None) -> Page:
        secret = token or gateway.token_of(participant)
        await loaded.load(tab.page, f"{gateway.url}/dashboard")
        await tab.page.goto(f"{gateway.url}/dashboard#token={secret}&space=review&participant={participant}")
        if token is None:
            await tab.page.get_by_text("live", exact=True).wait_for()
        return tab.page

    return open_as


@pytest.fixture
def join(gateway: RunningGateway) -> Join:
    """Connects members."""

    @asynccontextmanager
    async def joined(participant: str) -> AsyncIterator[Member]:
        # Members read little: with a bounded queue each would wait ten seconds for the gateway's close frame.
        async with connect(gateway.ws_url, max_queue=None) as socket:
            frame = join_frame(space="review", participant=participant, token=gateway.token_of(participant))
            await socket.send(json.dumps(frame))
            member = Member(socket)
            await member.received(kinds.SYSTEM_WELCOME)
            yield member

    return joined
