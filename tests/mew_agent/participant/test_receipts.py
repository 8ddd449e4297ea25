"""A program says which messages its model has read, and receipts pass that on."""

from collections.abc import Callable

import anyio
import pytest
from mew_protocol.envelope import Envelope
from mew_spaces.gateway.gateway import RunningGateway

from mew_agent import Participant
from mew_agent.context.message_facts import MessageKey, ReceiptFollower, ReceiptFollowers
from mew_agent.errors import PeerTimeout
from tests.support.faulty_link import faulty_link
from tests.support.waiting import PATIENCE_SECONDS, until

Joined = Callable[..., Participant]


async def test_a_program_reports_the_messages_that_it_read(joined: Joined) -> None:
    bob = joined("bob")

    @bob.on_clear
    async def clear() -> None:
        return

    async with joined("ada") as ada, bob:
        sent = await ada.chat("Please look at this.", to="bob")
        (before,) = await ada.receipts("bob", sent.id)
        assert (before.state, before.in_context, before.reason) == ("unknown", "unknown", "it keeps no receipts")
        await ada.receipts("bob", sent.id, follow=True)
        await bob.report_context(read=[sent.id])
        with anyio.fail_after(PATIENCE_SECONDS):
            receipts = await sent.read()
        assert (receipts["bob"].basis, receipts["bob"].in_context) == ("agent_reported", "whole")
        await ada.send("participant/clear", {}, to="bob")
        await until(lambda: sent.receipts["bob"].in_context == "gone")
        assert sent.receipts["bob"].state == "in_prompt"


async def test_several_tasks_wait_for_one_message_to_be_read(joined: Joined) -> None:
    bob, read = joined("bob"), list[str]()
    bob.on_clear(lambda: None)

    async with joined("ada") as ada, bob:
        sent = await ada.chat("Please look at this.", to="bob")
        await ada.receipts("bob", sent.id, follow=True)

        async def wait(name: str) -> None:
            await sent.read(timeout_seconds=PATIENCE_SECONDS)
            read.append(name)

        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as tasks:
                for name in ("one", "two", "three"):
                    tasks.start_soon(wait, name)
                await anyio.wait_all_tasks_blocked()
                await bob.report_context(read=[sent.id])
    assert sorted(read) == ["one", "three", "two"]


async def test_waiting_for_a_silent_addressee_ends_in_time(joined: Joined) -> None:
    async with joined("ada") as ada, joined("bob") as bob:
        bob.control.obey = ignore  # type: ignore[assignment, method-assign]
        sent = await ada.chat("Please look at this.", to="bob")
        with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(PeerTimeout, match=r"within 0\.2 seconds"):
            await sent.read(timeout_seconds=0.2)


async def ignore(_: Envelope) -> None:
    return


def test_only_concerned_followers_get_a_change() -> None:
    followers = ReceiptFollowers()
    for number in range(1_000):
        followers.put(ReceiptFollower(MessageKey("ada", f"m{number}"), "ada", "answered whole"))
    unread = ReceiptFollower(MessageKey("ada", "m1000"), "bob", "queued")
    followers.put(unread)
    followers.put(ReceiptFollower(MessageKey("ada", "m1001"), "bob", "refused"))
    assert len(followers.all) == 1_000
    assert followers.due(["read"]) == [unread]
    assert followers.due([unread.key, "read"]) == [unread]
    assert len(followers.due(["context"])) == 998
    assert followers.get(MessageKey("ada", "m0"), "ada") is None
    assert followers.due([MessageKey("ada", "m0")]) == []
    followers.put(ReceiptFollower(unread.key, "bob", "in_prompt whole"))
    assert followers.due(["read"]) == []


def test_a_message_that_was_cancelled_may_still_be_read() -> None:
    followers = ReceiptFollowers()
    cancelled, refused = (ReceiptFollower(MessageKey("ada", name), "ada", name) for name in ("cancelled", "refused"))
    followers.put(cancelled)
    followers.put(refused)
    assert followers.due(["read"]) == [cancelled]


async def test_a_follower_learns_of_a_change_during_a_lost_connection(gateway: RunningGateway, joined: Joined) -> None:
    async with faulty_link(gateway.port) as link, joined("ada") as ada:
        bob = Participant(link.url, space="demo", id="bob", token=gateway.token_of("bob"))
        async with bob:
            sent = await ada.chat("Please look at this.", to="bob")
            await ada.receipts("bob", sent.id, follow=True)
            link.go_dark()
            await bob.report_context(read=[sent.id])
            await anyio.wait_all_tasks_blocked()  # it has written the change, which is lost
            await link.cut()
            link.release()
            await until(lambda: sent.receipts["bob"].is_read)
