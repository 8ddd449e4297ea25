"""`mew fit`: whether a text fits into the free room of an agent."""

import json
from pathlib import Path
from typing import Any

import pytest
from mew_spaces.gateway.gateway import RunningGateway

from tests.support.cli import answering, board_shows, mew, seat, status
from tests.support.gateway_client import Client, Message

LAST = "; by its last report\n"


@pytest.mark.parametrize(
    ("after", "verdict"), [(True, "does not fit now, but after a compaction"), (False, "not even after a compaction")]
)
async def test_fit_prints_the_figures_of_the_agent(
    gateway: RunningGateway, tmp_path: Path, after: bool, verdict: str
) -> None:
    text, asked = tmp_path / "text.txt", []
    text.write_text("word " * 2_000)

    async def knows(client: Client, request: Message) -> None:
        asked.append(request["payload"]["fit"]["features"])
        known = {"fits": False, "tokens": 2_100, "tokens_basis": "projected", "fits_after_compaction": after}
        sizes = {"headroom_tokens": 900, "max_tokens": 8_000, "context_basis": "projected", "largest_tokens": 6_317}
        await status(client, to=request, fit={**known, **sizes})

    async with answering(gateway, "coder", knows):
        outcome = await mew("fit", "coder", str(text), *seat(gateway))
    size = "~2,100 tokens (projected); free: ~900 of 8,000 (projected); at most ~6,317 after a compaction"
    assert (outcome.code, outcome.out.endswith(f"{verdict}; {size}\n")) == (3, True)
    assert sum(asked[0]) > 0


async def test_fit_exits_by_whether_a_text_fits(gateway: RunningGateway, tmp_path: Path) -> None:
    context = {
        "basis": "reported",
        "next_prompt_tokens": 7_000,
        "queued": {"messages": 0, "tokens": 0, "basis": "projected"},
    }
    text = tmp_path / "text.txt"
    text.write_text("word " * 2_000)
    sizes: dict[str, Any] = {"tokens": 7_000, "max_tokens": 8_192}

    async def does_not_say(client: Client, request: Message) -> None:
        await status(client, to=request, **sizes, context=context)

    async with answering(gateway, "coder", does_not_say) as coder:
        await status(coder, **sizes, context=context)
        await board_shows(gateway, lambda board: board["coder"].status is not None)
        small = await mew("fit", "coder", "--tokens", "100", *seat(gateway))
        large = await mew("fit", "coder", str(text), "--json", *seat(gateway))
        unknown = await mew("fit", "ada", "--tokens", "100", *seat(gateway))
        missing = await mew("fit", "coder", str(tmp_path / "none"), *seat(gateway))
        del context["queued"]
        queue_unknown = await mew("fit", "coder", "--tokens", "100", *seat(gateway))
    assert (small.code, small.out) == (0, f"coder: fits; 100 tokens (given); free: 783 of 8,192 (reported){LAST}")
    found = json.loads(large.out)
    assert (large.code, found["fits"], found["tokens_basis"]) == (3, False, "heuristic")
    assert (unknown.code, unknown.out) == (1, f"ada: not known; 100 tokens (given); free: unknown (no report){LAST}")
    assert missing.code == 2
    said = f"coder: not known; 100 tokens (given); free: 783 of 8,192 (reported), its queue is not known{LAST}"
    assert (queue_unknown.code, queue_unknown.out) == (1, said)
