"""Programs over HTTP: who may read logs, restart and add, and what a gateway without programs answers."""

import httpx2
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway
from mew_spaces.gateway.programs import NewAgent, ProgramOutcome

SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "program/*"}, {kind: space/invite}]}
  starter: {capabilities: [{kind: "program/*"}]}
  bob: {role: person}
  reader: {capabilities: [{kind: "program/log", to: coder}]}
  coder: {role: agent}
"""


class Programs:
    """One program that obeys."""

    def participants(self) -> tuple[str, ...] | None:
        return ("coder",)

    async def log(self, participant: str, lines: int) -> tuple[str, ...] | None:
        return ("one", "two")[-lines:] if participant == "coder" else None

    async def restart(self, participant: str) -> ProgramOutcome:
        return ProgramOutcome(is_done=False, text=f"{participant}: its program exited with code 3")

    async def add(self, agent: NewAgent) -> ProgramOutcome:
        return ProgramOutcome(is_done=True, text=f"{agent.participant} like {agent.like}")


async def ask(gateway: RunningGateway, name: str, path: str, body: object = None) -> tuple[int, dict[str, object]]:
    """GET a path below the programs of the space, or POST a body to it."""
    url, headers = f"{gateway.url}/spaces/demo/programs{path}", {"authorization": f"Bearer {gateway.token_of(name)}"}
    async with httpx2.AsyncClient(timeout=60, trust_env=False) as http:
        answer = await (http.get(url, headers=headers) if body is None else http.post(url, headers=headers, json=body))
    return answer.status_code, answer.json()


async def test_programs_obey_participants_with_the_capability() -> None:
    async with serve_gateway(parse_space(SPACE)) as gateway:
        assert await ask(gateway, "bob", "") == (200, {"running": False, "participants": []})
        status, refused = await ask(gateway, "ada", "/coder/restart", {})
        assert (status, refused["error"]) == (409, "invalid_request")

        gateway.registry.programs["demo"] = Programs()
        assert await ask(gateway, "bob", "") == (200, {"running": True, "participants": ["coder"]})
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
            assert (status, refused["message"]) == (400, f"{key}: Extra inputs are not permitted")
        for name, path in (("bob", "/coder/restart"), ("bob", ""), ("reader", "/coder/restart"), ("starter", "")):
            status, refused = await ask(gateway, name, path, {"participant": "writer"})
            assert (status, refused["error"]) == (403, "capability_violation")
        assert (await ask(gateway, "bob", "/coder/log"))[0] == 403
        assert (await ask(gateway, "reader", "/ada/log"))[0] == 403
