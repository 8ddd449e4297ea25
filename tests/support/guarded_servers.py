"""Every server of the project, for attacks that all of them must survive. Also a program that runs one of them.

The program imports no other server: that would take longer than an attack.
"""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from mew_listener.request_guard import ONLY_OWN, Allowed

if TYPE_CHECKING:
    from mew_agent.parts.meter.main_line import MeteredCall
    from mew_agent.parts.meter.replies import Reply
    from mew_agent.parts.meter.request_facts import CallFacts
    from mew_agent.parts.shared.chat_participant import ChatParticipant

TOKEN = "token-of-ada"
HEADER_SECONDS = 0.5
"""How long a client of the gateway may take for its headers; the test sets it for the others."""

SPACE = f"""
space: {{id: demo}}
participants: {{ada: {{tokens: [{TOKEN}]}}}}
limits: {{header_timeout_seconds: {HEADER_SECONDS}}}
gateway: {{allowed_hosts: %s, allowed_origins: %s}}
"""


def person() -> "ChatParticipant":
    """A participant whose gateway cannot be reached."""
    from mew_agent.parts.shared.chat_participant import ChatParticipant

    return ChatParticipant("ws://localhost:1", space="demo", person="ada", token=TOKEN)


@asynccontextmanager
async def gateway(allowed: Allowed) -> AsyncIterator[str]:
    from mew_spaces.config.loading import parse_space
    from mew_spaces.gateway.gateway import serve_gateway

    hosts, origins = ([*map(str, one)] for one in (allowed.hosts, allowed.origins))
    async with serve_gateway(parse_space(SPACE % (hosts, origins))) as running:
        yield running.url


class _Observer:
    def begin(self, facts: "CallFacts") -> "MeteredCall":
        raise AssertionError(facts)

    def end(self, call: "MeteredCall", reply: "Reply | None") -> None:
        raise AssertionError(call, reply)


@asynccontextmanager
async def model(allowed: Allowed) -> AsyncIterator[str]:
    from mew_agent.parts.rehearsal.model_service import serve_rehearsal

    async with serve_rehearsal(allowed=allowed) as server:
        yield server.base_url


def serve(allowed: Allowed) -> AbstractAsyncContextManager[str]:
    from mew_agent.parts.openai_api.openai_app import create_app, serve_app

    participant = person()
    return serve_app(create_app(participant, api_key=TOKEN), participant, allowed=allowed)


def serve_a2a(allowed: Allowed) -> AbstractAsyncContextManager[str]:
    from mew_agent.parts.a2a.a2a_server import A2AServer

    return A2AServer(person(), TOKEN).serve(allowed=allowed)


def serve_mcp(allowed: Allowed) -> AbstractAsyncContextManager[str]:
    from mew_agent.parts.mcp.offers_server import OffersServer, serving_http
    from mew_agent.tools.catalog import LocalOffers

    return serving_http(OffersServer("demo", "", LocalOffers()), 0, TOKEN, allowed=allowed)


def relay(allowed: Allowed) -> AbstractAsyncContextManager[str]:
    from mew_agent.parts.meter.calls import MeasuredCalls
    from mew_agent.parts.shared.relay import serve_relay

    return serve_relay("http://127.0.0.1:1/v1", MeasuredCalls(_Observer()), allowed=allowed)


SERVERS: dict[str, tuple[str, Callable[[Allowed], AbstractAsyncContextManager[str]], str]] = {
    "mew_spaces.gateway.gateway": ("gateway", gateway, "/participants/ada/messages"),
    "mew_agent.parts.openai_api.openai_app": ("mew serve", serve, "/v1/chat/completions"),
    "mew_agent.parts.a2a.a2a_server": ("mew serve a2a", serve_a2a, "/agents/coder"),
    # Also the server that gives tools to agents that speak ACP.
    "mew_agent.parts.mcp.offers_server": ("mew serve mcp", serve_mcp, "/mcp"),
    "mew_agent.parts.shared.relay": ("mew meter", relay, "/v1/chat/completions"),
    "mew_agent.parts.rehearsal.model_service": ("mew serve model", model, "/v1/chat/completions"),
}
"""By the module that starts it: the name of a server, how it is started, and a path that takes a body."""


async def run(module: str) -> None:
    """Run a server with few file descriptors until it is ended; print its URL."""
    import resource

    from mew_agent.cli.app.terminal import configure_logging

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[2])))  # the server raises the first
    configure_logging("warning")
    async with SERVERS[module][1](ONLY_OWN) as url:
        print(url, flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(run, sys.argv[1])
