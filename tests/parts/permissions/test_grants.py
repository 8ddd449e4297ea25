"""`mew grant` and `mew revoke`."""

import json
from collections.abc import Callable

import pytest
from mew_spaces.gateway.gateway import RunningGateway

from mew_agent.cli.app.capabilities import read_capabilities
from mew_agent.errors import ConfigError
from tests.support.cli import mew, seat
from tests.support.gateway_client import joined


def test_capabilities_are_kinds_or_patterns() -> None:
    expected = [{"kind": "chat"}, {"kind": "mcp/*"}]
    assert read_capabilities("-c", '["chat", {"kind": "mcp/*"}]') == expected
    assert read_capabilities("-c", "chat", '{"kind": "mcp/*"}') == expected
    assert read_capabilities("-c", '"chat"', to=("ada",)) == [{"kind": "chat", "to": ["ada"]}]
    for text, problem in (
        ("[]", "has no kind"),
        ("", "has no kind"),
        ('{"kind": 5}', "kind: must be a string, not 5"),
        ('{"kind": "chat", "to": 5}', "to: must be a string, not 5"),
        ('{"kind": "chat", "payload": 5}', "payload: must be a mapping, not 5"),
        ('{"kind": "chat", "two": "ada"}', "unknown key 'two'"),
    ):
        with pytest.raises(ConfigError, match=f"-c: {problem}"):
            read_capabilities("-c", text)
    with pytest.raises(ConfigError, match="pattern 2: a text in this pattern has 1,001 characters; the limit is 1,000"):
        read_capabilities("-c", json.dumps(["chat", "*" * 1_001]))


async def test_a_grant_holds_until_it_is_revoked(gateway: RunningGateway) -> None:
    async with joined(gateway, "guest") as guest:
        granted = await mew("grant", "guest", "mcp/proposal", "--to", "coder", *seat(gateway))
        assert granted.out.splitlines()[0] == "guest: may now send mcp/proposal to coder"
        assert granted.out.splitlines()[2] == '  - {"kind": "mcp/proposal", "to": ["coder"]}'
        welcome = await guest.until("system/welcome")
        assert {"kind": "mcp/proposal", "to": ["coder"]} in welcome["payload"]["you"]["capabilities"]
        revoked = await mew("revoke", "guest", "mcp/*", *seat(gateway))
        assert (revoked.code, revoked.out) == (0, "guest: mcp/* revoked\n")
        again = await mew("revoke", "guest", "chat", *seat(gateway))
        assert again.code == 2
        assert "has no grant for chat; to remove capabilities of space.yaml, edit that file" in again.err


async def test_a_revocation_names_all_ended_rights(gateway: RunningGateway) -> None:
    async with joined(gateway, "guest") as guest, joined(gateway, "coder"):
        await mew("grant", "guest", "space/kick", "capability/*", *seat(gateway))
        await guest.until("capability/grant")
        await guest.send_envelope("capability/grant", {"recipient": "coder", "capabilities": [{"kind": "space/kick"}]})
        await guest.until("capability/grant")
        kept = await mew("revoke", "guest", "*", "--keep-passed-on", *seat(gateway))
        assert (kept.code, kept.out) == (0, "guest: * revoked\n")
        revoked = await mew("revoke", "guest", "*", *seat(gateway))
        assert revoked.out.splitlines() == ["guest: * revoked", "  ended too: coder: space/kick from guest"]
        await mew("grant", "guest", "space/kick", "capability/*", *seat(gateway))
        await guest.until("capability/grant")
        await guest.send_envelope("capability/grant", {"recipient": "coder", "capabilities": [{"kind": "space/kick"}]})
        await guest.until("capability/grant")
        listed = json.loads((await mew("revoke", "guest", "space/*", "--json", *seat(gateway))).out)
        assert listed["ended"] == [
            {"participant": "coder", "granted_by": "guest", "capabilities": [{"kind": "space/kick"}]}
        ]


async def test_a_revocation_is_done_even_if_its_answer_is_lost(
    gateway: RunningGateway, lose_answers: Callable[[], None]
) -> None:
    async with joined(gateway, "guest"):
        await mew("grant", "guest", "mcp/proposal", *seat(gateway))
        lose_answers()
        revoked = await mew("revoke", "guest", "mcp/proposal", *seat(gateway))
        assert (revoked.code, revoked.out, revoked.err) == (0, "guest: mcp/proposal revoked\n", "")
        listed = json.loads((await mew("revoke", "guest", "mcp/proposal", "--json", *seat(gateway))).out)
        assert listed == {"participant": "guest", "revoked": [{"kind": "mcp/proposal"}], "ended": None}
        assert gateway.service.space.membership.permissions_of("guest").granted == ()


async def test_a_kind_that_the_protocol_does_not_have_is_a_warning(gateway: RunningGateway) -> None:
    async with joined(gateway, "guest"):
        granted = await mew("grant", "guest", "chatt", "mcp/*", "program/log", *seat(gateway))
        assert granted.code == 0
        assert granted.err == (
            "mew: the protocol has no kind 'chatt' (did you mean 'chat'?); only your own programs can send it\n"
        )
    history = await mew("history", "--kind", "nonsense", *seat(gateway))
    assert history.err.startswith("mew: the protocol has no kind 'nonsense'; only")
    misspelled = await mew("history", "codr", *seat(gateway))
    assert misspelled.err == "mew: no participant 'codr' in space 'review' (did you mean 'coder'?)\n"


async def test_a_mistake_in_a_grant_is_named(gateway: RunningGateway) -> None:
    for arguments, said in (
        (("nobody", "chat"), "no participant 'nobody' in space 'review' (members: ada, coder, guest)"),
        (("guest", "{"), "CAPABILITY: is not JSON"),
        (("guest", '{"to": "x"}'), "CAPABILITY: has no kind"),
    ):
        outcome = await mew("grant", *arguments, *seat(gateway))
        assert outcome.code == 2
        assert said in outcome.err
    refused = await mew("grant", "guest", "chat", *seat(gateway, "guest"))
    assert "'guest' has no capability that covers 'capability/grant'" in refused.err


async def test_an_always_allowed_call_is_listed_with_the_way_to_end_it(gateway: RunningGateway) -> None:
    tool = {"method": "tools/call", "params": {"name": "write"}}
    pattern = {"kind": "mcp/request", "to": ["files"], "payload": tool, "approve": False}
    await mew("grant", "coder", json.dumps(pattern), *seat(gateway))
    last = (await mew("proposals", *seat(gateway))).out.splitlines()[-1]
    command = "mew revoke coder mcp/request --to files --tool write"
    assert last == f"coder may call write on files without asking; `{command}` ends it"
    assert (await mew(*command.split()[1:], *seat(gateway))).code == 0
    assert "without asking" not in (await mew("proposals", *seat(gateway))).out
