"""`mew serve acp`, as the official client of the protocol sees it."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mew_protocol.payloads.mcp import approval_of
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent.participant.participant import Participant
from tests.support.agents import StartAgent
from tests.support.waiting import PATIENCE_SECONDS, until
from tests.support.warm_start import MEW


class Editor:
    """A client that records what it is shown and allows what it is asked."""

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.asked: list[Any] = []

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        self.updates.append(update)

    async def request_permission(self, session_id: str, tool_call: Any, options: Any, **kwargs: Any) -> Any:
        from acp.schema import AllowedOutcome, RequestPermissionResponse

        self.asked.append(tool_call)
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id="allow"))

    def of(self, kind: str) -> list[Any]:
        return [one for one in self.updates if one.session_update == kind]

    @property
    def text(self) -> str:
        return "".join(one.content.text for one in self.of("agent_message_chunk"))


@asynccontextmanager
async def edited(gateway: RunningGateway) -> AsyncIterator[tuple[Any, Editor, str]]:
    """The client's connection to `mew serve acp coder`, its recorder, and a session."""
    import acp  # not at the top: it takes half a second to load, in each worker

    editor = Editor()
    identity = {
        "MEW_GATEWAY": gateway.ws_url,
        "MEW_SPACE": "demo",
        "MEW_PARTICIPANT_ID": "bob",
        "MEW_TOKEN": gateway.token_of("bob"),
    }
    command = (*MEW, "serve", "acp", "coder")
    async with acp.spawn_agent_process(
        lambda _: editor,  # type: ignore[arg-type,return-value]
        *command,
        env={**os.environ, **identity},
        transport_kwargs={"shutdown_timeout": PATIENCE_SECONDS},  # 2 s by default, which a busy machine exceeds
    ) as (link, _):
        with anyio.fail_after(PATIENCE_SECONDS):
            about = await link.initialize(protocol_version=1)
            assert about.agent_info is not None
            assert about.agent_info.title == "coder in demo"
            opened = await link.new_session(cwd=str(Path.cwd()), mcp_servers=[])
        yield link, editor, opened.session_id


def prompt(text: str) -> list[Any]:
    from acp import text_block

    return [text_block(text)]


async def test_an_editor_talks_to_an_agent_sees_its_figures_and_compacts(start_agent: StartAgent) -> None:
    from acp import RequestError

    async with start_agent(window_tokens=4000) as s, edited(s.gateway) as (link, editor, session):
        answer = await link.prompt(session_id=session, prompt=prompt("What does it do?"))
        assert answer.stop_reason == "end_turn"
        await until(lambda: bool(editor.text))
        await until(lambda: bool(editor.of("usage_update")))
        status = await s.status()
        shown = editor.of("usage_update")[-1]
        assert (shown.used, shown.size) == (status["tokens"], status["max_tokens"])
        assert "compact" in [one.name for one in editor.of("available_commands_update")[0].available_commands]

        for number in range(3):
            await link.prompt(session_id=session, prompt=prompt(f"Tell me about line {number} of the file."))
        await link.prompt(session_id=session, prompt=prompt("/compact"))
        await until(lambda: "compacted" in editor.text.lower())
        with pytest.raises(RequestError, match="no session"):
            await link.prompt(session_id="another", prompt=prompt("hello"))
        with pytest.raises(RequestError, match="no text"):
            await link.prompt(session_id=session, prompt=[])
        with pytest.raises(RequestError, match="no text"):  # the client of the package would not send it
            await link._conn.send_request("session/prompt", {"sessionId": session})


async def test_a_cancelled_prompt_cancels_the_agents_work(start_agent: StartAgent) -> None:
    async with start_agent(chunk_delay_seconds=5.0) as s, edited(s.gateway) as (link, _, session):
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await link.prompt(session_id=session, prompt=prompt("Take your time.")))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await s.server.wait_until(lambda: bool(s.main_requests))
            await link.cancel(session_id=session)
        assert answers[0].stop_reason == "cancelled"
        cancelled = await s.recorder.first("coder", "reasoning/conclusion")
        assert cancelled.body["cancelled"] is True


async def test_an_editor_is_shown_all_that_it_approves() -> None:
    space = """
    space: {id: demo}
    participants:
      bob: {capabilities: [{kind: "*"}]}
      coder: {command: x, capabilities: [{kind: mcp/proposal}, {kind: chat}, {kind: participant/status}]}
      files: {command: x, capabilities: [{kind: mcp/response}]}
    """

    def joined(gateway: RunningGateway, name: str) -> Participant:
        return Participant(gateway.ws_url, space="demo", id=name, token=gateway.token_of(name))

    async with serve_gateway(parse_space(space)) as gateway, joined(gateway, "coder") as coder:
        files, requests = joined(gateway, "files"), list[Any]()
        files.on("mcp/request")(requests.append)
        async with files, edited(gateway) as (_, editor, _session):
            params = {"name": "write", "arguments": {"path": "a\u202eb"}, "further": [1]}
            proposal = await coder.send("mcp/proposal", {"method": "tools/call", "params": params}, to="files")
            await until(lambda: any(one.body.get("method") == "tools/call" for one in requests))
            (asked,) = editor.asked
            assert (asked.title, asked.raw_input) == ("write on files", params)
            shown = asked.content[0].content.text
            assert 'write on files:\n{"path": "a<U+202E>b"}\nfurther parameters: {"further": [1]}' in shown
            (approval,) = [one for one in requests if one.body.get("method") == "tools/call"]
            assert approval.body == approval_of(proposal)
