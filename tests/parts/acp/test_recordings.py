"""What published agents sent, replayed: their figures hold when they are right, and are unknown when they are not."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from mew_protocol.json_values import value_at

from mew_agent.parts.acp.profiles import profiles
from tests.parts.acp.conftest import Start

RECORDINGS = Path(__file__).with_name("recordings")
PROGRAM = Path(__file__).with_name("replayed_agent.py")


@pytest.mark.parametrize("name", profiles())
async def test_recorded_agent_shows_the_counts_of_its_model_server(start: Start, name: str) -> None:
    recording = RECORDINGS / f"{name}.jsonl"
    first, second, third = json.loads(recording.read_text().splitlines()[0])["figures"]

    def shows(tokens: int | None) -> Any:
        return lambda status: status.get("tokens") == tokens and "context" in status

    async with start(agent=name, command=sys.executable, args=(str(PROGRAM), str(recording))) as s:
        for figure in (first, second):
            assert not (await s.ask("Next?")).startswith("I cannot")
            status = await s.until_status(shows(figure))
            assert (status["context"]["basis"], status["max_tokens"] or 0) == ("agent_reported", 200_000)
        done = await s.ada.compact("codex")
        assert not done.skipped
        compacted = await s.until_status(lambda status: status["status"] == "compacted")
        assert (compacted.get("tokens"), compacted["context"]["reason"]) == (None, "compacted")
        assert compacted["context"]["last_reported"]["tokens"] == second
        await s.ask("And now?")
        report = (await s.until_status(shows(third)))["context"]
    last = report["last_compaction"]
    assert (last["tokens_before"], last["tokens_after"]) == (second, third)
    # Claude reports what its session cost. Opencode reports 0 for a model without a price, which is unknown.
    cost = last_cost(recording)
    assert (cost is not None) == (name == "claude")
    assert report.get("spending") == (None if cost is None else {**cost, "unreported_calls": 0})


def last_cost(recording: Path) -> Any:
    """The newest cost of the session in a recording; None if all are 0 or absent."""
    messages = [json.loads(line).get("message") for line in recording.read_text().splitlines()]
    costs = [value_at(one, "params", "update", "cost") for one in messages]
    return next((one for one in reversed(costs) if value_at(one, "amount")), None)
