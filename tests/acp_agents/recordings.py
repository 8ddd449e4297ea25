"""Records what published ACP agents send, for the tests that replay it: part of `make test-agents`.

Each agent answers two chats, compacts, and answers a third, on the rehearsal model. The files hold the messages of both
sides in their order, without what no client reads: long texts are cut, long lists shortened, runs of plain pieces of
text kept to two. The first line holds what the model server counted for each chat.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import serve_gateway

from mew_agent import Participant
from mew_agent.parts.acp.acp_agent import AcpAgent
from mew_agent.parts.acp.profiles import profiles
from mew_agent.parts.acp.settings import AcpConfig
from mew_agent.parts.rehearsal.model_service import RehearsalServer, serve_rehearsal
from mew_agent.parts.rehearsal.rehearsal_options import RehearsalOptions
from tests.acp_agents.__main__ import AGENTS, SECONDS, SPACE, WINDOW, agents_path, check_node, install, main_figure
from tests.acp_agents.metered import until_settled

FOLDER = Path(__file__).parents[1] / "parts" / "acp" / "recordings"
CHATS = ("Say hello, please.", "What is a tide gauge?", "And what is there now?")
MAX_CHARS = 60
MAX_ITEMS = 3


async def record(name: str) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home, project, file = Path(folder), Path(folder) / "project", Path(folder) / "messages.jsonl"
        project.mkdir()
        async with (
            serve_rehearsal(RehearsalOptions(window_tokens=WINDOW)) as model,
            serve_gateway(parse_space(SPACE)) as gateway,
        ):
            settings = AcpConfig(
                agent=name,
                command=sys.executable,
                args=(str(Path(__file__).with_name("tee.py")), str(file), *AGENTS[name].command),
                cwd=str(project),
                env={"PATH": agents_path(), "HOME": folder, **AGENTS[name].configure(home, model.base_url)},
                max_restarts=0,
            )
            token = gateway.token_of("helper")
            ada = Participant(gateway.ws_url, space="agents", id="ada", token=gateway.token_of("ada"))
            async with ada, AcpAgent(settings, gateway.ws_url, space="agents", id="helper", token=token) as agent:
                figures = list[int | None]()
                for number, text in enumerate(CHATS):
                    if number == 2:
                        await ada.compact("helper", timeout_seconds=SECONDS)
                    await ada.ask("chat", {"text": text}, to="helper", answer="chat", timeout_seconds=SECONDS)
                    figures.append(await settled_figure(name, text, model, agent))
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        texts = [json.dumps({"figures": figures}), *(json.dumps(one) for one in compacted(lines))]
        FOLDER.mkdir(exist_ok=True)
        written = "\n".join(texts).replace(folder, "/home/user").replace(str(Path.home()), "/home/user")
        (FOLDER / f"{name}.jsonl").write_text(f"{written}\n")
        print(f"{name}: {figures}, {len(texts)} messages, {len(written):,} bytes", flush=True)


async def settled_figure(name: str, text: str, model: RehearsalServer, agent: AcpAgent) -> int | None:
    """What the model server counted for a chat, when the agent reported the same."""

    def counted() -> int | None:
        return main_figure(model.requests, text, profiles()[name].used)

    def is_told() -> bool:
        known = agent.external_context.known
        return known is not None and known.tokens == counted()

    await until_settled(is_told)
    return counted() if is_told() else None


def compacted(lines: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The messages without what makes them long."""
    run = 0
    for one in lines:
        if one["from"] == "client":
            message = one["message"]
            yield {"from": "client", **{key: message[key] for key in ("id", "method") if key in message}}
            continue
        update = one.get("message", {}).get("params", {}).get("update", {})
        is_piece = str(update.get("sessionUpdate")).endswith("_chunk") and not update.get("_meta")
        run = run + 1 if is_piece else 0
        if run <= 2:
            yield shortened(one)


def shortened(value: Any, key: str = "") -> Any:
    """The same JSON with short texts and lists. Of the models and commands, those that are read stay."""
    if isinstance(value, dict):
        return {name: shortened(one, name) for name, one in value.items()}
    if isinstance(value, list):
        read = [one for one in value if isinstance(one, dict) and is_read(one)]
        return [shortened(one) for one in (read + [one for one in value if one not in read])[:MAX_ITEMS]]
    return value[:MAX_CHARS] if isinstance(value, str) and not key.endswith(("Id", "id")) else value


def is_read(entry: dict[str, Any]) -> bool:
    return str(entry.get("name")).lstrip("/") in ("compact", "compress") or "rehearsal" in str(entry.get("modelId"))


async def main(names: list[str]) -> None:
    for name in names:
        await record(name)


if __name__ == "__main__":
    chosen = sys.argv[1:] or list(AGENTS)
    install(chosen)
    check_node()
    anyio.run(main, chosen)
