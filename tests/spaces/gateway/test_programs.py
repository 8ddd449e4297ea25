"""Programs over HTTP: who may read logs, restart and add, and what a gateway without programs answers."""

import logging
from typing import Any

import httpx2
import pytest
from mew_protocol.envelope import Draft
from mew_protocol.ids import ParticipantId
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway
from mew_spaces.gateway.http_bodies import ProgramAnswer
from mew_spaces.gateway.programs import NewProgram

SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "program/*"}, {kind: space/invite}]}
  starter: {capabilities: [{kind: "program/*"}]}
  narrow:
    capabilities:
      - {kind: program/add, to: "tmp-*"}
      - {kind: program/add, payload: {type: mcp_server, value: "https://tools.example/*"}}
      - {kind: space/invite, payload: {participant_id: "t*"}}
  bob: {role: person}
  pauser: {capabilities: [{kind: participant/pause}]}
  reader: {capabilities: [{kind: "program/log", to: coder}]}
  coder: {role: agent}
"""


def server(url: str) -> dict[str, object]:
    """What a request says of the tools of a server."""
    return {"type": "mcp_server", "value": url}


class Programs:
    """One program that obeys."""

    def participants(self) -> tuple[str, ...] | None:
        return ("coder",)

    async def startable(self) -> tuple[str, ...]:
        return ("files",)

    async def models(self) -> tuple[str, ...]:
        return ("coder",)

    async def log(self, participant: str, lines: int) -> tuple[str, ...] | None:
        return ("one", "two")[-lines:] if participant == "coder" else None

    async def restart(self, participant: str) -> ProgramAnswer:
        return ProgramAnswer(participant=participant, done=False, text=f"{participant}: its program exited with code 3")

    async def add(self, new: NewProgram) -> ProgramAnswer:
        return ProgramAnswer(
            participant=new.participant, done=True, text=f"{new.participant} like {new.like or new.value}"
        )


async def ask(gateway: RunningGateway, name: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
    """GET a path below the programs of the space, or POST a body to it."""
    url, headers = f"{gateway.url}/spaces/demo/programs{path}", {"authorization": f"Bearer {gateway.token_of(name)}"}
    async with httpx2.AsyncClient(timeout=60, trust_env=False, verify=False) as http:
        answer = await (http.get(url, headers=headers) if body is None else http.post(url, headers=headers, json=body))
    return answer.status_code, answer.json()


@pytest.mark.part("acp", "mcp")
async def test_programs_obey_participants_with_the_capability() -> None:
    async with serve_gateway(parse_space(SPACE)) as gateway:
        assert await ask(gateway, "bob", "") == (
            200,
            {"running": False, "participants": [], "startable": [], "models": [], "types": []},
        )
        status, refused = await ask(gateway, "ada", "/coder/restart", {})
        assert (status, refused["error"]) == (409, "invalid_request")

        gateway.registry.programs["demo"] = Programs()
        _, listed = await ask(gateway, "bob", "")
        types = {one.pop("type"): one for one in listed.pop("types")}
        assert listed == {"running": True, "participants": ["coder"], "startable": ["files"], "models": ["coder"]}
        help_text = "Offer the tools of the MCP server at URL."
        shown = {"role": "tool", "title": "MCP server", "value": "URL", "help": help_text, "choices": []}
        assert types["mcp_server"] == shown
        assert "claude" in types["acp"]["choices"]
        assert "agent" not in types
        for name in ("ada", "reader"):
            found = await ask(gateway, name, "/coder/log?lines=1")
            assert found == (200, {"participant": "coder", "lines": ["two"]})
        assert (await ask(gateway, "ada", "/bob/log"))[0] == 404
        assert (await ask(gateway, "ada", "/coder/log?lines=0"))[0] == 400
        done = {"participant": "coder", "done": False, "text": "coder: its program exited with code 3"}
        assert await ask(gateway, "ada", "/coder/restart", {}) == (200, done)
        added = {"participant": "writer", "done": True, "text": "writer like coder"}
        assert await ask(gateway, "ada", "", {"participant": "writer", "like": "coder"}) == (200, added)
        # A page chooses neither a program nor a server that the key of the space would be sent to.
        for key in ("command", "base_url", "env"):
            status, refused = await ask(gateway, "ada", "", {"participant": "writer", key: "x"})
            assert (status, refused["message"]) == (400, f"unknown key '{key}'")
        for name, path in (("bob", "/coder/restart"), ("bob", ""), ("reader", "/coder/restart"), ("starter", "")):
            status, refused = await ask(gateway, name, path, {"participant": "writer"})
            assert (status, refused["error"]) == (403, "capability_violation")
        assert (await ask(gateway, "bob", "/coder/log"))[0] == 403
        assert (await ask(gateway, "reader", "/ada/log"))[0] == 403


@pytest.mark.part("mcp", "meter")
async def test_capabilities_limit_which_programs_are_added() -> None:
    async with serve_gateway(parse_space(SPACE)) as gateway:
        gateway.registry.programs["demo"] = Programs()
        for body, status in (
            ({"participant": "tmp-1"}, 200),
            ({"participant": "writer"}, 403),
            ({"participant": "tools", **server("https://tools.example/mcp")}, 200),
            ({"participant": "tools", **server("https://other.example/mcp")}, 403),
            ({"participant": "tools", "type": "meter", "value": "https://tools.example/mcp"}, 403),
            ({"participant": "web", **server("https://tools.example/mcp")}, 403),  # may not invite it
        ):
            assert (await ask(gateway, "narrow", "", body))[0] == status, body
        paused = {"kind": "participant/pause", "to": ["ada"], "payload": {}}
        gateway.service.receive(None, ParticipantId("pauser"), Draft.model_validate(paused))
        status, refused = await ask(gateway, "ada", "/coder/restart", {})
        assert (status, refused["error"]) == (403, "paused")


async def test_programs_follow_a_space_that_ignores_to() -> None:
    async with serve_gateway(parse_space("capabilities: {ignore_to: true}\n" + SPACE)) as gateway:
        gateway.registry.programs["demo"] = Programs()
        assert (await ask(gateway, "reader", "/ada/log"))[0] == 404  # its capability names coder
        assert (await ask(gateway, "bob", "/coder/log"))[0] == 403


HOSTILE: tuple[tuple[dict[str, object], str], ...] = (
    ({"participant": "-x"}, "participant: "),
    ({"participant": "a\x00b"}, "participant: "),
    ({"participant": "a\nb"}, "participant: "),
    ({"participant": "../x"}, "participant: "),
    ({"system_prompt": "a\x00b"}, "system_prompt: "),
    ({"model": "m\x00"}, "model: "),
    # A variable in a URL would send what the gateway's machine keeps in it to any server.
    (server("https://x.example/${OPENAI_API_KEY}"), "value: "),
    (server("https://ada:secret@x.example/"), "value: "),
    (server("https://[x.example/"), "value: "),
    (server("https://x.example/a\nb"), "value: "),
    ({"type": "agent", "value": "x"}, "type: expected one of "),
    ({"type": "command", "value": "x"}, "type: expected one of "),
    ({"type": "mcp_server"}, "'type' and 'value' must be given together"),
    ({"value": "x"}, "'type' and 'value' must be given together"),
    ({**server("https://x.example/"), "like": "coder"}, "are for an agent without 'type'"),
    ({**server("https://x.example/"), "headers": {"a": "b"}}, "unknown key 'headers'"),
)


@pytest.mark.part("mcp")
async def test_hostile_additions_are_refused() -> None:
    async with serve_gateway(parse_space(SPACE)) as gateway:
        gateway.registry.programs["demo"] = Programs()
        for body, said in HOSTILE:
            status, refused = await ask(gateway, "ada", "", {"participant": "writer", **body})
            assert status == 400
            assert said in str(refused["message"])


async def test_a_name_in_the_path_writes_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serve_gateway(parse_space(SPACE)) as gateway:
        gateway.registry.programs["demo"] = Programs()
        status, _ = await ask(gateway, "ada", "/coder%0A12:00:00%20INFO%20forged%00/restart", {})
        assert status == 404
        assert not [record for record in caplog.records if "\n" in record.getMessage()]


async def test_requests_about_programs_have_a_rate() -> None:
    slow = "limits: {reads_per_second: 0.001}\n"
    async with serve_gateway(parse_space(slow + SPACE)) as gateway:
        gateway.registry.programs["demo"] = Programs()
        while gateway.registry.reads.try_spend(f"demo/{gateway.token_of('ada')}"):
            pass
        assert (await ask(gateway, "ada", "/coder/restart", {}))[0] == 429
