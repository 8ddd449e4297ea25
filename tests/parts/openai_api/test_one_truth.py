"""A day of two agents, in which every surface shows the same integer and the same basis at every step."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, get_args

import anyio
import httpx2
from mcp import Client
from mew_protocol.context_report import Basis
from mew_protocol.payloads.participant import basis_label
from mew_spaces.gateway.gateway import RunningGateway
from prometheus_client.parser import text_string_to_metric_families

from mew_agent.cli.remote.identity import Identity
from mew_agent.participant.participant import Participant
from mew_agent.parts.mcp.space_offers import context_uri
from mew_agent.parts.openai_api.serve_openai import metrics_of
from mew_agent.parts.terminal.app import SpaceApp
from tests.parts.mcp.test_space_offers import connected as mcp_client
from tests.parts.openai_api.conftest import KEY, ChatApiDriver, StartChatApi
from tests.support.cli import mew, seat
from tests.support.faulty_link import faulty_link
from tests.support.gateway_client import opened
from tests.support.terminal_app import Screen
from tests.support.waiting import PATIENCE_SECONDS, until

Figure = tuple[int | None, str]
"""Tokens, None if they are not known, and their basis."""

WORDED = {known.replace("_", " "): known for known in get_args(Basis)}
"""Each basis by its name for people."""


@dataclass
class Surfaces:
    """Everything that shows how full an agent is."""

    built: ChatApiDriver
    http: httpx2.AsyncClient
    mcp: Client
    terminal: Screen
    steps: int = 0

    @property
    def gateway(self) -> RunningGateway:
        return self.built.driver.gateway

    async def agree(self, agent: str, expected: Callable[[Figure], bool]) -> Figure:
        """Wait until the agent's newest status is as expected, and check that all surfaces show it."""
        await until(lambda: expected(self._sent(agent)[1]))
        while True:  # an agent at rest may still send the last status of its turn
            envelope_id, figure = self._sent(agent)
            shown = await self._read(agent, figure)
            if self._sent(agent)[0] == envelope_id:
                break
        assert shown == dict.fromkeys(shown, figure)
        self.steps += 1
        return figure

    def _sent(self, agent: str) -> tuple[str, Figure]:
        """The id and the figure of the agent's newest status to everyone, as it went to the members."""
        log = self.gateway.service.log
        for entry in reversed(log.since(log.start, limit=100_000) or ()):
            envelope = json.loads(entry.data)
            if (envelope["from"], envelope["kind"]) == (agent, "participant/status") and not envelope.get("to"):
                body = envelope["payload"]
                return envelope["id"], (body.get("tokens"), body.get("context", {}).get("basis", ""))
        return "", (None, "")

    async def _read(self, agent: str, figure: Figure) -> dict[str, Figure]:
        gateway, built = self.gateway, self.built
        ada = {"authorization": f"Bearer {gateway.token_of('ada')}"}
        shown: dict[str, Figure] = {}

        board = (await self.http.get(f"{gateway.url}/spaces/demo/context", headers=ada)).json()
        shown["HTTP"] = _of_entry(next(one for one in board["participants"] if one["id"] == agent))

        table = (await mew("status", *seat(gateway))).out
        shown["mew status"] = _of_row(next(line for line in table.splitlines() if line.startswith(agent)), figure[1])
        entries = json.loads((await mew("status", "--json", *seat(gateway))).out)
        entry = next(one for one in entries if one["id"] == agent)
        shown["mew status --json"] = (entry["status"].get("tokens"), entry["basis"])

        metrics = (await self.http.get(f"{gateway.url}/metrics", headers=ada)).text
        shown["metrics of the gateway"] = _of_metrics(metrics, agent)

        resource = await self.mcp.read_resource(context_uri(agent))
        shown["MCP resource"] = _of_entry(json.loads(resource.contents[0].text))  # type: ignore[union-attr]

        async with opened(gateway, "shy") as late:
            await late.join(gateway.token_of("shy"))
            welcome = await late.until("system/welcome")
        shown["welcome"] = _of_entry(next(one for one in welcome["payload"]["board"] if one["id"] == agent))

        readers: dict[str, Participant] = {"peers of Python": built.driver.ada, "peers of mew serve": built.participant}
        with anyio.move_on_after(PATIENCE_SECONDS):
            while any(_of_peer(reader, agent) != figure == self._sent(agent)[1] for reader in readers.values()):
                await anyio.sleep(0.005)  # their sockets may be later
        shown |= {name: _of_peer(reader, agent) for name, reader in readers.items()}
        shown["terminal application"] = await self._on_screen(agent, figure)

        url, key = built.base_url.removesuffix("/v1"), {"authorization": f"Bearer {KEY}"}
        shown["metrics of mew serve"] = _of_metrics((await self.http.get(f"{url}/metrics", headers=key)).text, agent)
        model = await self.http.get(f"{url}/v1/models/{agent}", headers=key)
        if model.status_code == 200:
            mew_key = model.json()["mew"]
            shown["models of mew serve"] = (mew_key.get("tokens"), mew_key["basis"])
        return shown

    async def _on_screen(self, agent: str, figure: Figure) -> Figure:
        """The figure that the terminal application draws below the agent's name; it draws a little later."""
        found: Figure = (None, "not drawn")

        async def is_drawn() -> bool:
            nonlocal found
            rows = [line.split("│")[0] for line in (await self.terminal.text()).splitlines()]
            below = next((second for first, second in pairwise(rows) if agent in first.split()), "")
            if drawn := re.match(rf"  ([~?\d,]+) of [~?\d,]+ ({'|'.join(WORDED)})", below):
                found = (None if drawn[1] == "?" else int(drawn[1].strip("~").replace(",", ""))), WORDED[drawn[2]]
            return found == figure or figure != self._sent(agent)[1]

        with suppress(TimeoutError):
            await until(is_drawn, every_seconds=0.05)
        return found


def _of_entry(entry: dict[str, Any]) -> Figure:
    return entry["status"].get("tokens"), entry["status"]["context"]["basis"]


def _of_row(row: str, basis: str) -> Figure:
    """The figure of a row of the table: `coder  ~1,204 of 8,192  ...  projected  ...`."""
    shown = row.split()[1]
    is_marked = shown.startswith("~")
    assert is_marked == (basis not in ("reported", "server_counted", "unknown")), row
    named = [known for words, known in WORDED.items() if f"  {words}  " in f"{row}  "]
    return (None if shown == "?" else int(shown.lstrip("~").replace(",", ""))), named[0] if len(named) == 1 else row


def _of_metrics(text: str, agent: str) -> Figure:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("participant") == agent:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
    ((about, _),) = found["mew_context_info"]
    tokens = found.get("mew_context_tokens")
    if tokens is None:
        return None, about["basis"]
    ((labels, value),) = tokens
    assert labels["basis"] == about["basis"]
    return int(value), labels["basis"]


def _of_peer(reader: Participant, agent: str) -> Figure:
    context = reader.peers[agent].context
    return context.tokens, basis_label(context.tokens, context.report)


async def test_every_surface_shows_the_same_figure_all_day(chat: StartChatApi, gateway: RunningGateway) -> None:
    async with (
        faulty_link(gateway.port) as link,
        chat(
            agent={"gateway": link.url},
            app={"sessions": "shared", "write_metrics": metrics_of("demo")},
            options={"inactivity_seconds": 60},
            reply_tokens=60,
        ) as built,
        mcp_client(gateway) as client,
        httpx2.AsyncClient(timeout=60, trust_env=False, verify=False) as http,
        Participant(gateway.ws_url, space="demo", id="mute", token=gateway.token_of("mute")) as foreign,
        SpaceApp(Identity(gateway.ws_url, "demo", "ada", gateway.token_of("ada"))).run_test(size=(50, 24)) as pilot,
    ):
        day, driver = Surfaces(built, http, client.client, Screen(pilot)), built.driver
        await pilot.press("f2")  # only the participants have room
        assert await day.agree("coder", lambda figure: figure[1] == "unknown") == (None, "unknown")

        await driver.ask("How does the lexer find the end of a string that is not closed?")
        first = await day.agree("coder", lambda figure: figure[1] == "reported")
        await built.ask("And of a comment? Answer by mew serve, please.")
        second = await day.agree("coder", lambda figure: (figure[0] or 0) > (first[0] or 0))

        for number in range(3):
            await driver.ask(f"{number}: which rule of the grammar takes the longest, and why is that so?")
        full = await day.agree("coder", lambda figure: (figure[0] or 0) > (second[0] or 0))
        done = await driver.ada.compact("coder")
        third = await day.agree("coder", lambda figure: figure[1] != "reported")
        assert third[0] == done.tokens_after
        assert (third[0] or 0) < (full[0] or 0)
        await driver.ask("What did we say of comments?")
        await day.agree("coder", lambda figure: figure[1] == "reported")

        before = len(driver.recorder.sent_by("coder", "participant/status"))
        await link.cut("reset")
        await driver.recorder.until(lambda: len(driver.recorder.sent_by("coder", "participant/status")) > before)
        fourth = await day.agree("coder", lambda figure: figure[0] is not None)

        driver.server.change(served_model="rehearsal-2")
        await driver.ask("And now, as another model?")
        await day.agree("coder", lambda figure: figure[1] != "unknown" and figure != fourth)
        driver.server.change(usage_on="none")
        await driver.ask("Without usage?")
        await day.agree("coder", lambda figure: figure[1] == "unknown")
        driver.server.change(usage_on="empty_last_chunk")
        await driver.ask("With usage again?")
        await day.agree("coder", lambda figure: figure[1] == "reported")
        await driver.control("clear")
        await day.agree("coder", lambda figure: figure == (None, "unknown"))

        await foreign.report_context(61_204, window=128_000, basis="agent_reported")
        await day.agree("mute", lambda figure: figure == (61_204, "agent_reported"))
        await foreign.report_context(20_111, basis="reported")
        await day.agree("mute", lambda figure: figure == (20_111, "reported"))
        await foreign.report_context(unknown="compacted")
        await day.agree("mute", lambda figure: figure == (None, "unknown"))
        assert day.steps == 14

        async def recorded() -> bool:
            history = await gateway.service.figures_of(3_600, 1_000, "coder")
            last = history.participants[0].samples[-1] if history.participants else None
            compactions = history.participants[0].compactions if history.participants else ()
            is_done = [one.freed_tokens for one in compactions] == [done.freed_tokens]
            return last is not None and (last.tokens, last.basis) == (None, "unknown") and is_done

        await until(recorded)
