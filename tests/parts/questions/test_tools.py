"""`mew tools`: the tools that participants offer."""

import json
from collections.abc import Mapping
from typing import Any

from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import serve_gateway

from mew_agent.participant.participant import Participant
from mew_agent.tools.peer_offers import MAX_LISTED
from tests.support.cli import mew, seat
from tests.support.gateway_client import joined

SPACE = """
space: {id: review}
participants:
  ada: {capabilities: [{kind: "*"}]}
  files: {command: mew, capabilities: [{kind: mcp/response}]}
  mute: {command: mew, capabilities: [{kind: mcp/response}]}
  coder: {command: mew, capabilities: [{kind: chat}]}
  guest: {capabilities: [{kind: chat}]}
"""


async def test_tools_are_listed_by_participant() -> None:
    async with serve_gateway(parse_space(SPACE)) as gateway, joined(gateway, "mute"):
        files = Participant(gateway.ws_url, space="review", id="files", token=gateway.token_of("files"))

        @files.tool
        def read_file(path: str) -> str:
            """Read a file.

            More.
            """
            return path

        async with files:
            listed = await mew("tools", "--timeout", "2", *seat(gateway))
            of_files = await mew("tools", "files", "--json", *seat(gateway))
            silent = await mew("tools", "mute", "--timeout", "0.2", *seat(gateway))
            forbidden = await mew("tools", *seat(gateway, "guest"))
    assert listed.out == "files\n  read_file  Read a file.\n"
    assert listed.err == "mew: no answer in 2 s from mute\n"
    (tool,) = json.loads(of_files.out)
    assert (tool["participant"], tool["name"], tool["inputSchema"]["required"]) == ("files", "read_file", ["path"])
    assert silent.code == 4
    assert "mute" in silent.err
    assert forbidden.code == 2
    assert "mcp/request" in forbidden.err


async def test_a_list_of_tools_without_end_is_cut() -> None:
    class Endless:
        pages = 0

        async def request(self, _method: str, _params: Mapping[str, Any]) -> dict[str, Any]:
            Endless.pages += 1
            return {"tools": [{"name": f"t{Endless.pages}-{n}"} for n in range(200)], "nextCursor": "more"}

    async with serve_gateway(parse_space(SPACE)) as gateway:
        token = gateway.token_of("files")
        async with Participant(gateway.ws_url, space="review", id="files", token=token, offers=Endless()):
            listed = await mew("tools", "files", *seat(gateway))
    assert len(listed.out.splitlines()) == MAX_LISTED + 1
    assert "files lists more tools; showing 500" in listed.err
    assert Endless.pages == 3
