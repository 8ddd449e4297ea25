"""`mew proposals`, `approve` and `reject`, with an agent that waits. Gateway and model are real."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2
import pytest
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.mcp import digest_of
from mew_protocol.payloads.participant import Status
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent.agent.agent import Agent
from mew_agent.cli.main import command_line
from mew_agent.cli.remote.decisions import complete_proposals
from mew_agent.config.agent_config import AgentConfig
from mew_agent.errors import NotAccepted
from mew_agent.participant.event_handlers import ProposalMade
from mew_agent.participant.participant import Participant
from mew_agent.parts.rehearsal import serve_rehearsal
from mew_agent.tools.catalog import INVALID_REQUEST, RequestFailed
from tests.support.cli import mew, seat
from tests.support.rehearsal_model import rehearsal_model
from tests.support.waiting import PATIENCE_SECONDS, until

SPACE = """
space: {id: review}
participants:
  ada: {capabilities: [{kind: "*"}]}
  bob: {capabilities: [{kind: chat}, {kind: mcp/reject}]}
  files: {command: x, capabilities: [{kind: mcp/response}]}
  coder:
    command: mew
    capabilities:
      - {kind: chat}
      - {kind: "chat/*"}
      - {kind: participant/status}
      - {kind: mcp/request, payload: {method: tools/list}}
      - {kind: mcp/proposal}
      - {kind: mcp/withdraw}
"""
QUESTION = 'call files__write with {"path": "a.txt"}'


@dataclass
class Waiting:
    """`bob` asked `coder`, and `coder` proposed a call of `files`."""

    gateway: RunningGateway
    written: list[str]
    asked: anyio.Event
    answer: str = ""

    async def coder_reports(self, word: str) -> Status:
        found: list[Status] = []

        def is_reported() -> bool:
            found[:] = [one.status for one in self.gateway.board().participants if one.id == "coder" and one.status]
            return bool(found) and found[0].status == word

        await until(is_reported)
        return found[0]

    async def answered(self) -> str:
        with anyio.fail_after(PATIENCE_SECONDS):
            await self.asked.wait()
        await self.coder_reports("active")
        return self.answer


def participant(gateway: RunningGateway, name: str) -> Participant:
    return Participant(gateway.ws_url, space="review", id=name, token=gateway.token_of(name))


@pytest.fixture
async def waiting() -> AsyncIterator[Waiting]:
    async with (
        serve_gateway(parse_space(SPACE)) as gateway,
        agent_that_proposes(gateway) as written,
        participant(gateway, "bob") as bob,
        anyio.create_task_group() as tasks,
    ):
        made = Waiting(gateway, written, anyio.Event())

        async def ask() -> None:
            answer = await bob.ask("chat", {"text": QUESTION}, to="coder", answer="chat", timeout_seconds=30)
            made.answer = str(answer.body["text"])
            made.asked.set()

        tasks.start_soon(ask)
        await made.coder_reports("waiting_for_approval")
        yield made
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def agent_that_proposes(gateway: RunningGateway) -> AsyncIterator[list[str]]:
    files, written = participant(gateway, "files"), list[str]()

    @files.tool
    async def write(path: str) -> str:
        """Write a file."""
        written.append(path)
        return f"wrote {path}"

    async with serve_rehearsal() as server, files:
        values = {"gateway": gateway.ws_url, "space": "review", "id": "coder", "token": gateway.token_of("coder")}
        config = AgentConfig(**values, base_url=server.base_url, context_token_limit=8_000)
        async with Agent(config, rehearsal_model(server.base_url)):
            yield written


async def test_a_waiting_agent_reports_its_waits_and_the_possible_approvers(waiting: Waiting) -> None:
    report = (await waiting.coder_reports("waiting_for_approval")).context
    assert report is not None
    assert report.waiting is not None
    (wait,) = report.waiting
    assert (wait.kind, wait.peer, wait.tool, wait.arguments) == ("approval", "files", "write", {"path": "a.txt"})
    assert wait.who_may_answer == ()
    shown = await mew("status", *seat(waiting.gateway))
    assert "waiting for approval" in shown.out
    assert 'approval of write on files {"path": "a.txt"}, asked ' in shown.out


async def test_a_participant_that_joins_later_gets_the_open_proposal_once(waiting: Waiting) -> None:
    ada, made = participant(waiting.gateway, "ada"), list[ProposalMade]()
    ada.on_proposal(made.append)
    async with ada:
        await until(lambda: bool(made))
        assert (made[0].sender, made[0].tool, made[0].is_open) == ("coder", "write", True)

        def is_ada_named() -> bool:
            entry = next(one for one in waiting.gateway.board().participants if one.id == "coder")
            report = entry.status.context if entry.status is not None else None
            waits = report.waiting if report is not None else None
            return waits is not None and waits[0].who_may_answer == ("ada",)

        await until(is_ada_named)
        await made[0].fulfil()
        assert await waiting.answered() == "files__write answered: wrote a.txt"
    assert len(made) == 1


async def test_a_chat_names_its_wait_and_the_possible_approvers(waiting: Waiting) -> None:
    name = (await mew("proposals", *seat(waiting.gateway))).out[:8]
    outcome = await mew("chat", "coder", QUESTION, "--timeout", "1", *seat(waiting.gateway))
    assert outcome.code == 4
    hint, timeout = outcome.err.splitlines()
    what = 'approval of write on files {"path": "a.txt"}'
    commands = f"`mew approve {name}` or `mew reject {name}`"
    listed = what.replace(" {", ": {")  # of the gateway, not of the status
    assert hint == f"mew: 'coder' waits for {listed}; ada may approve: {commands}"
    assert timeout == f"mew: 'coder' did not answer 'chat' within 1 second (it waits for {what}; see `mew proposals`)"


async def test_a_listed_proposal_is_approved_by_the_beginning_of_its_id(waiting: Waiting) -> None:
    listed = await mew("proposals", *seat(waiting.gateway))
    first, parameters = listed.out.splitlines()
    name = first.split()[0]
    assert first.startswith(f"{name}  coder proposes files/write, ")
    assert first.endswith("; ada may approve")
    assert parameters == '  {"path": "a.txt"}'
    (entry,) = json.loads((await mew("proposals", "--json", *seat(waiting.gateway, "bob"))).out)
    assert (entry["from"], entry["may_fulfil"], len(name)) == ("coder", ["ada"], 8)
    refused = await mew("approve", name, *seat(waiting.gateway, "bob"))
    assert (refused.code, waiting.written) == (2, [])
    assert "'bob' may not call files/write; ada may approve" in refused.err
    approved = await mew("approve", name, *seat(waiting.gateway))
    assert (approved.code, approved.out) == (0, "approved: coder gets the answer of files/write\n")
    assert (await waiting.answered(), waiting.written) == ("files__write answered: wrote a.txt", ["a.txt"])
    assert (await mew("proposals", *seat(waiting.gateway))).out == "no proposal is open\n"
    again = await mew("approve", name, *seat(waiting.gateway))
    assert (again.code, again.err) == (2, f"mew: {name}: no open proposal has this id (open: none)\n")


@pytest.mark.parametrize("name", [(), ("coder",)], ids=["no name", "proposer"])
async def test_only_open_proposal_is_shown_whole_and_approved(waiting: Waiting, name: tuple[str, ...]) -> None:
    approved = await mew("approve", *name, *seat(waiting.gateway))
    (short, *_), *_ = map(str.split, approved.out.splitlines())
    assert f"{short}  coder proposes files/write" in approved.out
    assert approved.out.endswith("approved: coder gets the answer of files/write\n")
    await waiting.answered()
    again = await mew("approve", *name, *seat(waiting.gateway))
    assert again.code == 2
    assert "open" in again.err


async def test_tab_completes_ids_and_proposers(waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    *flags, token = seat(waiting.gateway)
    options = dict(zip(("gateway", "space", "participant"), flags[1::2], strict=True))
    monkeypatch.setenv(*token.split("="))
    context = command_line().make_context("mew", ["version"], resilient_parsing=True)
    context.params = options
    with anyio.fail_after(PATIENCE_SECONDS):
        found = await anyio.to_thread.run_sync(complete_proposals, context, "")
    names = dict(found)
    assert names["coder"] == "its only open proposal"
    assert [text for name, text in found if name != "coder"] == ["coder: files/write"]


async def test_a_rejected_proposal_gives_the_reason_to_the_agent(waiting: Waiting) -> None:
    name = (await mew("proposals", *seat(waiting.gateway))).out.split()[0]
    rejected = await mew("reject", name, "--reason", "not today", *seat(waiting.gateway, "bob"))
    assert (rejected.code, rejected.out) == (0, "rejected: coder may not call files/write\n")
    assert "not today" in await waiting.answered()
    assert waiting.written == []


async def test_an_approval_that_comes_too_late_is_an_error() -> None:
    async def refuse(request: Envelope) -> dict[str, Any]:
        raise RequestFailed(INVALID_REQUEST, "'eve' allowed it already")

    async with serve_gateway(parse_space(SPACE)) as gateway, participant(gateway, "coder") as coder:
        coder.mcp_server.own_requests = refuse

        async def propose() -> None:
            await coder.mcp.propose_to_self({"name": "permission"}, (), PATIENCE_SECONDS)

        coder.start_soon(propose)
        listed = ""

        async def is_listed() -> bool:
            nonlocal listed
            listed = (await mew("proposals", *seat(gateway))).out
            return "coder/permission" in listed

        await until(is_listed)
        late = await mew("approve", listed.split()[0], *seat(gateway))
        assert (late.code != 0, "'coder' answered: 'eve' allowed it already" in late.err) == (True, True)


CALL = {"method": "tools/call", "params": {"name": "write", "arguments": {"path": "a.txt"}}}
OTHER = {"method": "tools/call", "params": {"name": "write", "arguments": {"path": "/etc/passwd"}}}


async def test_the_list_names_those_who_rejected_a_proposal() -> None:
    async with (
        serve_gateway(parse_space(SPACE)) as gateway,
        participant(gateway, "coder") as coder,
        participant(gateway, "bob") as bob,
    ):
        made = await coder.send("mcp/proposal", {"method": "tools/call", "params": {"name": "write"}}, to="files")
        await bob.send("mcp/reject", {"reason": "no"}, to="coder", correlation_id=(made.id,))
        listed = await mew("proposals", *seat(gateway))
    assert listed.out.splitlines()[0].endswith("; ada may approve; rejected by bob")


async def test_a_proposal_that_was_shown_is_never_another_one() -> None:
    async with serve_gateway(parse_space(SPACE)) as gateway, participant(gateway, "files") as files:
        written: list[str] = []

        @files.tool
        async def write(path: str) -> str:
            """Write a file."""
            written.append(path)
            return path

        async with participant(gateway, "coder") as coder, participant(gateway, "ada") as ada:
            send = coder.messenger.send
            await send("mcp/proposal", CALL, to="files", id="3f2a9c1b-1")
            shown = (await mew("proposals", *seat(gateway))).out.split()[0]
            assert shown == "3f2a9c1b"
            for again in (CALL | {"method": "resources/read"}, OTHER):
                with pytest.raises(NotAccepted, match="already_exists"):
                    await send("mcp/proposal", again, to="files", id="3f2a9c1b-1")
            with pytest.raises(NotAccepted, match="already_exists"):
                await ada.messenger.send("mcp/proposal", CALL, to="files", id="3f2a9c1b-1")
            await send("mcp/withdraw", {"reason": "no"}, correlation_id=("3f2a9c1b-1",))
            for name in ("3f2a9c1b-1", "3f2a9c1b"):
                with pytest.raises(NotAccepted, match="already_exists"):
                    await send("mcp/proposal", OTHER, to="files", id=name)
            await send("mcp/proposal", OTHER, to="files", id="3f2a9c1b-2")
            typed = await mew("approve", shown, *seat(gateway))
            assert (typed.code, written) == (2, [])
            assert (
                "matches several proposals, decided ones included; type more of the id (open: 3f2a9c1b-2)" in typed.err
            )
            stale = {**CALL, "proposal_digest": digest_of(CALL, "coder", ["files"])}
            for body in (stale, {**OTHER, "proposal_digest": stale["proposal_digest"]}):
                envelope = {"kind": "mcp/request", "to": ["files"], "correlation_id": ["3f2a9c1b-2"], "payload": body}
                answer = await post(gateway, envelope)
                assert (answer.status_code, answer.json()["error"]) == (409, "proposal_differs")
            with pytest.raises(NotAccepted, match="proposal_differs"):
                await ada.messenger.send("mcp/request", stale, to="files", correlation_id=("3f2a9c1b-2",))
            assert written == []
            assert (await mew("approve", "3f2a9c1b-2", *seat(gateway))).code == 0
            await until(lambda: written == ["/etc/passwd"])


@pytest.mark.parametrize("chosen", ["files", "coder", "coder-12"])
async def test_the_name_of_a_participant_is_no_id_of_a_proposal(chosen: str) -> None:
    async with (
        serve_gateway(parse_space(SPACE)) as gateway,
        participant(gateway, "files") as files,
        participant(gateway, "coder") as coder,
    ):
        requests: list[Envelope] = []
        files.on("mcp/request")(requests.append)
        await coder.messenger.send("mcp/proposal", CALL, to="files", id=chosen)
        refused = await mew("approve", "files", *seat(gateway))
        assert (refused.code, requests) == (2, [])
        assert "files: has no open proposal" in refused.err
        shown = await mew("approve", "coder", *seat(gateway))
        assert shown.out.startswith(f"{chosen[:8]}  coder proposes files/write, ")
        assert '{"path": "a.txt"}' in shown.out


async def post(gateway: RunningGateway, envelope: dict[str, Any]) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {gateway.token_of('ada')}"}
    async with httpx2.AsyncClient() as http:
        return await http.post(f"{gateway.url}/participants/ada/messages?space=review", json=envelope, headers=headers)


async def test_the_list_hides_nothing() -> None:
    async with serve_gateway(parse_space(SPACE)) as gateway, participant(gateway, "coder") as coder:
        arguments = {"path": "a\u202etxt.exe", "text": "one \ntwo\u200b"}
        params = {"name": "wr\u2066ite", "arguments": arguments, "further": "x" * 300}
        await coder.messenger.send("mcp/proposal", {"method": "tools/call", "params": params}, to="files", id="p-1")
        shown = (await mew("proposals", *seat(gateway))).out.splitlines()
        assert shown[0].startswith("p-1  coder proposes files/wr<U+2066>ite, ")
        assert shown[1:] == [
            '  {"path": "a<U+202E>txt.exe"}',
            "  text:",
            "    one<U+0020>",
            "    two<U+200B>",
            f'  further parameters: {{"further": "{"x" * 300}"}}',
        ]
