"""`mew pin` and `mew unpin` at a real agent."""

import hashlib
import json

from mew_spaces.gateway.gateway import RunningGateway

from tests.support.agents import StartAgent
from tests.support.cli import mew, seat

RULE = "never push to main"


async def test_commands_pin_list_and_unpin(start_agent: StartAgent, gateway: RunningGateway) -> None:
    async with start_agent(agent={"pins": ["be brief"]}) as s:
        flags = seat(gateway)
        pinned = await mew("pin", "coder", RULE, *flags)
        digest = hashlib.sha256(RULE.encode()).hexdigest()[:16]
        assert pinned.code == 0
        assert pinned.out.startswith("coder: pinned as p1, ~")
        assert pinned.out.endswith(f" tokens, hash {digest}\n")
        again = await mew("pin", "coder", RULE, *flags)
        assert again.out.startswith("coder: already pinned as p1")
        listed = await mew("pin", "coder", *flags)
        assert [line.split()[0] for line in listed.out.splitlines()] == ["s1", "p1"]
        assert listed.out.splitlines()[1].endswith(f"tokens from ada  {RULE}")
        board = await mew("status", *flags)
        assert f"2 pins {s.statuses[-1]['context']['pins'][0]['hash'][:8]} {digest[:8]}" in board.out
        as_json = json.loads((await mew("pin", "coder", "--json", *flags)).out)
        assert [pin["text"] for pin in as_json["pins"]] == ["be brief", RULE]
        refused = await mew("unpin", "coder", "s1", *flags)
        assert (refused.code, refused.out) == (
            3,
            "coder: refused: 's1' is from the agent's settings; remove it there\n",
        )
        for arguments, said in (
            (("pin", "coder", "x" * 4_001), "TEXT: must have at most 4,000 characters"),
            (("unpin", "coder", ""), "PIN: must not be empty"),
        ):
            mistaken = await mew(*arguments, *flags)
            assert (mistaken.code, mistaken.err) == (2, f"mew: {said}\n")
        assert (await mew("unpin", "coder", RULE, *flags)).out == "coder: unpinned\n"
        (gone,) = (await mew("pin", "coder", *flags)).out.splitlines()
        assert gone.startswith("s1")
