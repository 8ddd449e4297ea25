"""The HTTP side of A2A: a card and a JSON-RPC endpoint for each participant of a space.

Owns the routes, the cards, the bearer token, and the size limit of requests. Cards are public, because they explain how
to sign in; everything else requires the token. `tasks` runs the tasks.
"""

import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
from a2a.compat.v0_3.extension_headers import LEGACY_HTTP_EXTENSION_HEADER
from a2a.extensions.common import HTTP_EXTENSION_HEADER
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentSkill,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from mew_listener.request_guard import ONLY_OWN, Allowed
from mew_listener.serving import serving
from mew_protocol.codec import parse_json
from mew_protocol.errors import DecodeError
from mew_protocol.payloads.participant import Status
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message

from mew_agent import __version__
from mew_agent.parts.a2a.tasks import CONTEXT_EXTENSION, ParticipantTasks, RecentTasks, UsableRequests, tools_of
from mew_agent.parts.a2a.tool_calls import JSON, A2ARole, extension_of, skills_of
from mew_agent.parts.shared.api_limits import AnswerFailed
from mew_agent.parts.shared.chat_participant import ChatParticipant
from mew_agent.parts.shared.http_servers import FAILURE_HANDLERS, KeyCheck, TracedRequests, health_routes

SCHEMA_PATH: Final = "/extensions/context/v1.json"
CARD_SECONDS: Final = 1.5
"""How long a card waits for the tools of its participant, if they are not known."""

PARSE_ERROR: Final = -32700
"""The code of JSON-RPC for a body that is not JSON."""

VERSIONS: Final = ("1.0", "0.3")
"""The versions of A2A that clients may speak, the preferred one first."""


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Return False for logged tracebacks of the SDK about invalid requests, because the client gets the error."""
    return not str(record.msg).startswith(("Failed to validate base", "Failed to parse request", "Request Error"))


for _name in ("a2a.server.routes.jsonrpc_dispatcher", "a2a.compat.v0_3.jsonrpc_adapter"):
    logging.getLogger(_name).addFilter(_is_worth_a_line)


@dataclass(eq=False)
class A2AServer:
    """Serves participants to A2A clients. `only` are the served ids; empty means all except `participant`.

    `roles` come from space.yaml. Without one, a participant is an agent if it reports a context, a tool if it has
    tools, else a person. `public_url` is the address in cards (default: the one a client connected to).
    """

    participant: ChatParticipant
    token: str
    only: Sequence[str] = ()
    roles: Mapping[str, A2ARole] = field(default_factory=dict)
    public_url: str | None = None
    _handlers: dict[str, DefaultRequestHandler] = field(default_factory=dict)

    @asynccontextmanager
    async def serve(self, *, host: str = "127.0.0.1", port: int = 0, allowed: Allowed = ONLY_OWN) -> AsyncIterator[str]:
        """Serve until the block exits; yields the base URL. Raises OSError if the port is in use."""
        if self.public_url is not None:
            allowed = replace(allowed, hosts=(*allowed.hosts, urlsplit(self.public_url).hostname or ""))
        try:
            async with serving(
                self.app(), host=host, port=port, stopping=self.participant.close, allowed=allowed
            ) as url:
                yield url
        finally:
            for handler in self._handlers.values():
                await handler.aclose()

    def participants(self) -> dict[str, A2ARole]:
        """Return the served participants, present or absent, and how each answers."""
        me, found = self.participant, dict(self.roles)
        for name in me.peers.keys() - me.options.silent:
            found.setdefault(name, "tool" if me.peers[name].tools else "person")
        found |= {one.name: "agent" for one in me.agents() if one.name not in self.roles}
        return {name: found[name] for name in sorted(found) if name in (self.only or found) and name != me.id}

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[
                *health_routes(self.participant),
                Route("/agents", self._all_cards),
                Route("/agents/{name}", self._call, methods=["POST"]),
                Route("/agents/{name}/.well-known/agent-card.json", self._one_card),
                Route(SCHEMA_PATH, self._schema),
            ],
            middleware=[
                Middleware(KeyCheck, api_keys={"": self.token}, requires_key=_requires_token),
                Middleware(TracedRequests),
            ],
            exception_handlers=FAILURE_HANDLERS,
        )

    async def _all_cards(self, request: Request) -> Response:
        found, cards = self.participants(), dict[str, AgentCard]()

        async def add(name: str, role: A2ARole) -> None:
            cards[name] = await self._card(name, role, request)

        async with anyio.create_task_group() as tasks:  # so that silent participants delay the list only once
            for name, role in found.items():
                tasks.start_soon(add, name, role)
        return JSONResponse({"agents": [agent_card_to_dict(cards[name]) for name in found]})

    async def _one_card(self, request: Request) -> Response:
        # Without a token, a card of a known participant can be read, but not the names of others.
        name, role = self._named(request, lists_others=False)
        return JSONResponse(agent_card_to_dict(await self._card(name, role, request)))

    async def _schema(self, _: Request) -> Response:
        return JSONResponse({"$id": CONTEXT_EXTENSION, **Status.model_json_schema()})

    async def _call(self, request: Request) -> Response:
        """Answer one JSON-RPC request, or a stream of responses."""
        name, role = self._named(request)
        handler = self._handlers.get(name)
        if handler is None:
            card = await self._card(name, role, request)
            handler = self._handlers.setdefault(
                name,
                DefaultRequestHandler(
                    ParticipantTasks(self.participant, name, lambda: self.participants().get(name, role)),
                    RecentTasks(),
                    card,
                    request_context_builder=UsableRequests(),
                ),
            )
        dispatcher = JsonRpcDispatcher(handler, enable_v0_3_compat=True)
        try:  # before the SDK, which logs invalid and incomplete requests as its own failures
            body = parse_json(await request.body())
        except DecodeError as error:
            problem = {"code": PARSE_ERROR, "message": error.detail}
            return JSONResponse({"jsonrpc": "2.0", "id": None, "error": problem})
        response = await dispatcher.handle_requests(_with_body(request, json.dumps(body).encode()))
        for name in (HTTP_EXTENSION_HEADER, LEGACY_HTTP_EXTENSION_HEADER):
            if CONTEXT_EXTENSION in (one.strip() for one in request.headers.get(name, "").split(",")):
                response.headers[name] = CONTEXT_EXTENSION
        return response

    def _named(self, request: Request, *, lists_others: bool = True) -> tuple[str, A2ARole]:
        """Return the participant named in the path, and how it answers. Raises `AnswerFailed` (404)."""
        name, found = request.path_params["name"], self.participants()
        if name not in found:
            others = (
                f" ({', '.join(found) or 'none yet'})" if lists_others else "; with the token, GET /agents lists them"
            )
            problem = f"no participant '{name}' is offered here{others}"
            raise AnswerFailed(HTTPStatus.NOT_FOUND, "participant_not_found", problem)
        return name, found[name]

    async def _card(self, name: str, role: A2ARole, request: Request) -> AgentCard:
        base = self.public_url or _local_url(request)
        description = f"{role.capitalize()} '{name}' of the space '{self.participant.space}'."
        tools = () if role == "person" else await tools_of(self.participant, name, CARD_SECONDS)
        skills, extensions, inputs = skills_of(tools), [extension_of(tools)] if tools else [], [JSON] if tools else []
        if role == "agent":
            report: dict[str, Any] = {"schema": f"{base}{SCHEMA_PATH}"}
            about = "How full the agent's context is."
            extensions.insert(0, AgentExtension(uri=CONTEXT_EXTENSION, description=about, params=report))
        if role != "tool" or not tools:
            skills.insert(0, AgentSkill(id="chat", name="Chat", description=description, tags=["chat"]))
        return AgentCard(
            name=name,
            description=description,
            version=__version__,
            supported_interfaces=[
                AgentInterface(url=f"{base}/agents/{name}", protocol_binding="JSONRPC", protocol_version=one)
                for one in VERSIONS
            ],
            capabilities=AgentCapabilities(streaming=True, extensions=extensions),
            security_schemes={
                "token": SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="bearer"))
            },
            security_requirements=[SecurityRequirement(schemes={"token": StringList()})],
            default_input_modes=["text/plain", *inputs],
            default_output_modes=["text/plain", *inputs],
            skills=skills,
        )


def _with_body(request: Request, body: bytes) -> Request:
    """Return the request with another body."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return unread.pop() if unread else await request.receive()

    return Request(request.scope, receive)


def _local_url(request: Request) -> str:
    """Return the address that the client connected to. Its `Host` header may name another one."""
    host, port = request.scope["server"]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _requires_token(path: str) -> bool:
    return path.startswith("/agents") and not path.endswith("/.well-known/agent-card.json")
