"""`mew invite`."""

import json
from collections.abc import Callable

import pytest
from mew_protocol.capability import normalise
from mew_settings.roles import ROLE_PATTERNS
from mew_spaces.gateway.gateway import RunningGateway

from mew_agent.participant.participant import Participant
from tests.support.cli import mew, seat


async def test_an_invited_person_joins_with_the_printed_token(gateway: RunningGateway) -> None:
    invited = await mew("invite", "grace", *seat(gateway))
    first, token, browser, terminal = invited.out.splitlines()
    assert (invited.code, first) == (0, "grace: invited")
    secret = token.split()[1]
    assert browser.split()[1] == f"{gateway.url}/dashboard#token={secret}&space=review&participant=grace"
    assert terminal.endswith(f"MEW_PARTICIPANT_ID=grace MEW_TOKEN={secret} mew connect")
    async with Participant(gateway.ws_url, space="review", id="grace", token=secret) as grace:
        assert grace.may_send("participant/compact", {}, ("coder",))
        assert not grace.may_send("space/invite")


@pytest.mark.parametrize(
    ("words", "patterns"),
    [
        (["tool"], [*ROLE_PATTERNS["tool"]]),
        (["chat", '{"kind": "mcp/proposal"}'], [{"kind": "chat"}, {"kind": "mcp/proposal"}]),
        (["observer"], []),
    ],
)
async def test_roles_and_kinds_say_what_the_guest_may_send(
    gateway: RunningGateway, words: list[str], patterns: list[dict[str, object]]
) -> None:
    invited = await mew("invite", "guest-2", *words, "--json", *seat(gateway))
    token = json.loads(invited.out)["token"]
    async with Participant(gateway.ws_url, space="review", id="guest-2", token=token) as guest:
        assert [*guest.messenger.capabilities.patterns] == [*normalise(patterns)]


async def test_an_id_that_is_taken_is_refused(gateway: RunningGateway) -> None:
    taken = await mew("invite", "ada", *seat(gateway))
    assert taken.code == 1
    assert "'ada' is already a participant of this space" in taken.err
    assert (await mew("invite", "not an id", *seat(gateway))).code == 2


async def test_an_invitation_without_an_answer_names_the_way_to_a_token(
    gateway: RunningGateway, lose_answers: Callable[[], None]
) -> None:
    lose_answers()
    invited = await mew("invite", "grace", "--json", *seat(gateway))
    assert invited.code == 0
    assert json.loads(invited.out) == {"participant": "grace", "status": "duplicate", "token": None, "dashboard": None}
    assert "mew token grace --replace` in the folder of the space prints a new one" in invited.err
    assert (await mew("invite", "heidi", *seat(gateway))).out == "heidi: invited\n"


async def test_a_misspelt_role_is_a_kind_with_a_warning(gateway: RunningGateway) -> None:
    invited = await mew("invite", "guest-3", "persn", *seat(gateway))
    assert "the protocol has no kind 'persn'" in invited.err
