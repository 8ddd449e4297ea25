"""The gateway works without its parts: their folders may be missing."""

import ast
import subprocess
import sys
from pathlib import Path

import mew_spaces
import pytest

ROOT = Path(str(mew_spaces.__path__[0]))
WITHOUT_PARTS = """
import sys
sys.modules["mew_spaces.parts"] = None
import anyio, httpx2
from mew_protocol.codec import read_draft
from mew_protocol.ids import ParticipantId
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import serve_gateway

async def main():
    config = parse_space("{space: {id: a}, participants: {ada: {capabilities: [{kind: chat}]}}}")
    async with serve_gateway(config) as one:
        draft = read_draft({"kind": "chat", "payload": {"text": "x"}})
        print((await one.service.post(ParticipantId("ada"), draft)).accepted.kind)
        headers = {"authorization": f"Bearer {one.token_of('ada')}"}
        async with httpx2.AsyncClient(base_url=one.url, headers=headers, trust_env=False, verify=False) as client:
            print((await client.get("/metrics")).json())
    try:
        parse_space("{space: {id: a}, backplane: 'nats://127.0.0.1:1'}")
    except Exception as error:
        print(error)

anyio.run(main)
"""


def imported(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


@pytest.mark.parametrize("room", ["config", "core", "gateway", "launch", "log"])
def test_no_room_of_the_core_imports_a_part(room: str) -> None:
    found = {path.name: imported(path) for path in (ROOT / room).rglob("*.py")}
    assert found
    assert not [name for name, names in found.items() if any(one.startswith("mew_spaces.parts") for one in names)]


def test_a_gateway_without_the_folder_of_parts_serves_a_space() -> None:
    run = subprocess.run([sys.executable, "-c", WITHOUT_PARTS], capture_output=True, text=True, timeout=60)
    first, metrics, second = run.stdout.splitlines()
    assert first == "chat"
    assert "no installed part of mew-agent serves this" in metrics
    assert second.endswith("backplane: no installed part of mew-agent has a storage for several gateways")
