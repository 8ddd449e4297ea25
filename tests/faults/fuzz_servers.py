"""The servers of a space in processes of their own, and how a person uses each: what the fuzz attacks and reads.

Owns their start and their requests. Does not know what is sent to them otherwise.
"""

import json
import os
import resource
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2

from tests.faults.fuzz_inputs import FUZZERS, SPACE_ID, Door, token_of
from tests.faults.processes import PROGRAMS, START_SECONDS, GatewayProcess, ProgramProcess
from tests.support.ports import unused_ports
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.warm_start import PYTHON

ASK: Final = {"model": "coder", "messages": [{"role": "user", "content": "How high is the tide?"}]}
_INITIALIZE: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "fuzz", "version": "1"}},
}
_ACCEPT: Final = {"accept": "application/json, text/event-stream"}
_NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Given to each client: making the usual context takes longer than a request."""

_MODEL_PATHS: Final = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/models", "/v1/embeddings", "/")
_MODEL_BODIES: Final[tuple[dict[str, Any], ...]] = (
    ASK,
    {**ASK, "stream": True, "tools": [{"type": "function", "function": {"name": "x", "parameters": {}}}]},
    {"model": "coder", "input": "How high?", "stream": True},
    {"model": "coder", "max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
)
_PEOPLE: Final = ("witness", "listener", "server", "mcp")
AGENT: Final = "coder"
_AGENTS: Final = (AGENT, "acp")
_WAITING: Final = ("attention", "proposals")


def space_yaml(webhook: str) -> str:
    """The space of a run: people, agents, and participants that send what they should not."""
    kinds = ("chat", "mcp/*", "reasoning/*", "stream/*", "capability/*", "space/invite", "space/kick", "system/*")
    controls = ("status", "request-status", "compact", "compact-done", "forget", "request-receipts", "receipts")
    fuzzed = [{"kind": kind} for kind in (*kinds, *(f"participant/{one}" for one in controls))]
    everything = [{"kind": "*"}]
    return json.dumps(
        {
            "space": {"id": SPACE_ID},
            "participants": {
                **{name: {"tokens": [token_of(name)], "capabilities": fuzzed} for name in FUZZERS},
                **{name: {"tokens": [token_of(name)], "capabilities": everything} for name in _PEOPLE},
                **{
                    name: {"tokens": [token_of(name)], "capabilities": everything, "command": "true"}
                    for name in _AGENTS
                },
                "metered": {"tokens": [token_of("metered")], "capabilities": everything, "command": "true"},
            },
            "limits": {
                "envelopes_per_second": 10**6,
                "envelope_burst": 10**6,
                "history_envelopes": 1_000,
                "history_bytes": 8 * 1024 * 1024,
            },
            "gateway_logging": {"enabled": False},
            "attention": {"webhook": webhook},
        }
    )


@dataclass(eq=False)
class Server:
    """One server. `requests` are what a person asks of it: a method, a path, and a body."""

    name: str
    process: ProgramProcess
    door: Door
    requests: Sequence[tuple[str, str, dict[str, Any] | None]]
    reader: str
    """The token of the person."""
    rss_before: int = 0
    _asked: int = field(default=0)

    async def ask(self) -> str:
        """Make the next request of a person, on a connection of its own. Returns its path. Raises `AssertionError`."""
        method, path, body = self.requests[self._asked % len(self.requests)]
        self._asked += 1
        base, headers = f"http://127.0.0.1:{self.door.port}", {"authorization": f"Bearer {self.reader}"}
        async with httpx2.AsyncClient(base_url=base, headers=headers, timeout=120.0, verify=_NO_TLS) as http:
            if path == "/mcp":
                await _ask_mcp(http)
            else:
                answer = await http.request(method, path, json=body)
                # A busy machine ends connections: an agent that joins again is absent for a moment, and so is its card.
                is_absent = "participant_not_found" in answer.text
                assert answer.status_code == 200 or is_absent, (
                    f"{method} {path}: {answer.status_code} {answer.text[:300]}"
                )
                return f"{path} (absent)" if is_absent else path
        return path


async def _ask_mcp(http: httpx2.AsyncClient) -> None:
    """Open a session, list the tools and end the session, as a client of MCP does."""
    opened = await http.post("/mcp", json=_INITIALIZE, headers=_ACCEPT)
    assert opened.status_code == 200, f"initialize: {opened.status_code} {opened.text[:300]}"
    session = {"mcp-session-id": opened.headers["mcp-session-id"], **_ACCEPT}
    await http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session)
    listed = await http.post("/mcp", json={"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, headers=session)
    assert "send_chat" in listed.text, f"tools/list: {listed.status_code} {listed.text[:300]}"
    await http.delete("/mcp", headers=session)


class FuzzedSpace:
    """The gateway, and with `whole` every other server that this project has."""

    def __init__(self, folder: Path, webhook: str, *, whole: bool) -> None:
        self.gateway = GatewayProcess(folder, space_yaml(webhook))
        self.servers: list[Server] = []
        self._folder = folder
        self._whole = whole
        self._programs: list[ProgramProcess] = []

    @property
    def processes(self) -> list[ProgramProcess]:
        """All processes, the gateway first."""
        return [self.gateway, *self._programs]

    async def start(self) -> None:
        """Start them all, and wait until each answers a person."""
        await self.gateway.start()
        reads = ("participants", "metrics", *(f"spaces/fuzz/{one}" for one in ("context", "view", *_WAITING)))
        more = ("participants/witness/messages?space=fuzz&limit=1000", "health", "dashboard")
        self.servers.append(
            Server(
                "gateway",
                self.gateway,
                Door(
                    self.gateway.port,
                    token_of(FUZZERS[0]),
                    (
                        *(f"/participants/{FUZZERS[0]}/messages?space=fuzz", "/spaces/fuzz/context", "/health"),
                        *(f"/participants/{FUZZERS[0]}/messages?limit=-1&since=x", "/spaces/fuzz/events?since=%00"),
                        *("/openapi.json", "/metrics", "/spaces/fuzz/view", "/"),
                        *(f"/spaces/fuzz/{one}" for one in _WAITING),
                    ),
                ),
                [("GET", f"/{path}", None) for path in (*reads, *more)],
                token_of("witness"),
            )
        )
        if self._whole:
            await self._start_others()
        for server in self.servers:
            await self._until_it_answers(server)

    def close(self) -> None:
        """End all processes."""
        for process in reversed(self.processes):
            process.close()

    async def _start_others(self) -> None:
        model, meter, serve, a2a, mcp = unused_ports(5)
        model_url = f"http://127.0.0.1:{model}/v1"
        self._mew("model", "serve", "model", "--port", str(model))
        self._mew("meter", *("meter", "--upstream", model_url, "--listen", f"127.0.0.1:{meter}"), joins_as="metered")
        self._mew("serve", *("serve", "openai", "--port", str(serve), "--api-key", "k-serve"), joins_as="server")
        self._mew("a2a", *("serve", "a2a", "--port", str(a2a), "--api-key", "k-a2a"), joins_as="server")
        self._mew("mcp", *("serve", "mcp", "--http", str(mcp)), joins_as="mcp")
        agent = {
            **self._place(AGENT),
            "OPENAI_BASE_URL": model_url,
            "OPENAI_MODEL": "rehearsal",
            "OPENAI_API_KEY": "-",
        }
        self._start(AGENT, [PYTHON, str(PROGRAMS), "agent"], agent)
        found = self._folder / "acp.json"
        words = [one for word in (str(PYTHON), str(PROGRAMS), "acp", str(found)) for one in ("--command", word)]
        self._mew("acp", "acp", "start", *words, joins_as="acp")
        with anyio.fail_after(START_SECONDS):
            while not found.exists():
                await anyio.sleep(0.02)
        tools = json.loads(await anyio.Path(found).read_text())
        acp_token = tools["headers"][0]["value"].removeprefix("Bearer ")
        acp_port = int(httpx2.URL(tools["url"]).port or 0)
        answers = ("/v1/chat/completions", "/v1/responses", "/v1/models", "/v1/models/coder", "/metrics", "/health")
        card = "/agents/coder/.well-known/agent-card.json"
        for name, port, token, paths, bodies, asked in (
            ("model", model, "-", _MODEL_PATHS, _MODEL_BODIES, (("POST", "/v1/chat/completions", ASK),)),
            ("meter", meter, "-", _MODEL_PATHS, _MODEL_BODIES, (("POST", "/v1/chat/completions", ASK),)),
            (
                "serve",
                serve,
                "k-serve",
                answers,
                _MODEL_BODIES,
                (("GET", "/v1/models", None), ("GET", "/metrics", None)),
            ),
            (
                "a2a",
                a2a,
                "k-a2a",
                ("/agents/coder", "/agents", card),
                (),
                (("GET", "/agents", None), ("GET", card, None)),
            ),
            ("mcp", mcp, token_of("mcp"), ("/mcp",), (_INITIALIZE,), (("POST", "/mcp", None),)),
            ("acp", acp_port, acp_token, ("/mcp",), (_INITIALIZE,), (("POST", "/mcp", None),)),
        ):
            process = next(one for one in self._programs if one.name == name)
            self.servers.append(Server(name, process, Door(port, token, paths, bodies), asked, token))

    def _mew(self, name: str, *words: str, joins_as: str | None = None) -> None:
        environment = {} if joins_as is None else self._place(joins_as)
        self._start(name, [PYTHON, "-m", "mew_agent", *words], environment)

    def _place(self, participant: str) -> dict[str, str]:
        return {
            "MEW_GATEWAY": self.gateway.url,
            "MEW_SPACE": SPACE_ID,
            "MEW_PARTICIPANT_ID": participant,
            "MEW_TOKEN": token_of(participant),
        }

    def _start(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        process = ProgramProcess(name, self._folder, command, environment)
        self._programs.append(process)
        process.launch()

    async def _until_it_answers(self, server: Server) -> None:
        problem: object = None
        with anyio.move_on_after(START_SECONDS):
            while not server.process.has_ended:
                try:
                    await server.ask()
                except (httpx2.HTTPError, AssertionError) as error:
                    problem = error
                    await anyio.sleep(0.05)
                else:
                    return
        raise AssertionError(f"{server.name} does not answer: {problem!r}\n{server.process.output[-3000:]}")


async def run_command(folder: Path, space: FuzzedSpace, *words: str) -> tuple[float, int, str]:
    """Run a command as the witness. Returns its seconds of CPU, its exit code, and what it printed."""
    command = [PYTHON, "-m", "mew_agent", *words, "--gateway", space.gateway.url, "--space", SPACE_ID]
    command += ["--participant", "witness"]
    environment = {**os.environ, "MEW_TOKEN": token_of("witness")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)  # of those that have ended: one command runs at a time
    with anyio.fail_after(PATIENCE_SECONDS):
        done = await anyio.run_process(command, cwd=folder, env=environment, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, done.returncode, (done.stdout + done.stderr).decode(errors="replace")
