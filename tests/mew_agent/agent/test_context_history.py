"""The figures of a real agent over time, as the gateway keeps them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
from mew_protocol.payloads.context_history import ContextHistory
from mew_spaces.config.loading import SpaceConfig
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent.participant.participant import Participant
from mew_agent.parts.rehearsal import RehearsalOptions, serve_rehearsal
from tests.support.agents import EnvelopeRecorder, running_agent
from tests.support.cli import mew, seat
from tests.support.waiting import PATIENCE_SECONDS, until


async def read(gateway: RunningGateway, token: str | None = None, **query: Any) -> httpx2.Response:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with httpx2.AsyncClient(base_url=gateway.url, timeout=60, trust_env=False, verify=False) as client:
        return await client.get("/spaces/demo/context/history", headers=headers, params=query)


async def kept(gateway: RunningGateway) -> ContextHistory:
    return ContextHistory.model_validate_json((await read(gateway, gateway.token_of("bob"))).content)


async def test_figures_and_compactions_survive_a_restart_of_the_gateway(
    space: SpaceConfig, tokens: TokenBook, tmp_path: Path, text: Callable[[int], str]
) -> None:
    async with (
        serve_gateway(space, tokens=tokens, state=tmp_path / "state") as gateway,
        serve_rehearsal(RehearsalOptions(reply_tokens=40)) as server,
        running_agent(gateway, server, None, None, 30.0, "coder", ()),
        Participant(gateway.ws_url, space="demo", id="ada", token=gateway.token_of("ada")) as ada,
    ):
        recorder = EnvelopeRecorder(ada)

        async def ask(question: str) -> None:
            await ada.ask("chat", {"text": question}, to="coder", answer="chat", timeout_seconds=PATIENCE_SECONDS)

        for _ in range(4):
            await ask(text(200))
        done = await ada.compact("coder")
        await ask("Which way does the gauge drift?")

        async def is_kept() -> bool:
            coder = next(entry for entry in gateway.board().participants if entry.id == "coder")
            found = (await kept(gateway)).participants
            assert coder.status is not None
            return bool(found) and found[0].samples[-1].tokens == coder.status.tokens

        await until(is_kept)
        before = await kept(gateway)
        shown = await mew("status", "--history", "60", *seat(gateway))
        as_json = await mew("status", "--history", "60", "--json", *seat(gateway))
        assert (await read(gateway)).status_code == 401
        assert (await read(gateway, "wrong")).status_code == 403
        assert (await read(gateway, gateway.token_of("bob"), seconds=0)).status_code == 400
        other = await read(gateway, gateway.token_of("bob"), participant="ada")
        assert other.json()["participants"] == []
    async with serve_gateway(space, tokens=tokens, state=tmp_path / "state") as again:
        after = await kept(again)
    assert after.participants == before.participants
    (coder,) = before.participants
    sent = [envelope.body for envelope in recorder.sent_by("coder", "participant/status")]
    reported = {(body.get("tokens"), body["context"]["basis"]) for body in sent}
    assert coder.samples
    assert {(one.tokens, one.basis) for one in coder.samples[1:]} <= reported
    (compaction,) = coder.compactions
    assert (compaction.trigger, compaction.asked_by) == ("requested", "ada")
    figures = (compaction.tokens_before, compaction.tokens_after, compaction.freed_tokens, compaction.basis)
    assert figures == (done.tokens_before, done.tokens_after, done.freed_tokens, done.basis)
    assert done.cost is not None
    assert compaction.spent_tokens == (done.cost.prompt_tokens or 0) + (done.cost.completion_tokens or 0)
    assert f"compaction, requested by ada, {done.tokens_before:,} -> {done.tokens_after:,}, freed" in shown.out
    assert json.loads(as_json.out)[0] == coder.model_dump(mode="json", exclude_unset=True)
