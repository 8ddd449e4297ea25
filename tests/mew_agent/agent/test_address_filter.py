"""Which chats an agent answers: by rules, or by its model where the rules leave it open; the model is real HTTP."""

from typing import Any

import anyio
import pytest
from mew_protocol.envelope import Envelope

from mew_agent.agent.address_filter import MAX_CHARS, AddressFilter, AnswerBroadcasts
from tests.support.conversation_driver import TOOL, ConversationDriver, StartConversation, without_spending
from tests.support.waiting import PATIENCE_SECONDS


def chat(text: str, *, to: tuple[str, ...] = (), correlation_id: tuple[str, ...] = (), **more: Any) -> Envelope:
    return Envelope.model_validate(
        {
            "protocol": "mew/v0.4",
            "id": "c1",
            "ts": "2026-01-01T00:00:00Z",
            "from": "ada",
            "kind": "chat",
            "payload": {"text": text, **more},
            **({"to": to} if to else {}),
            **({"correlation_id": correlation_id} if correlation_id else {}),
        }
    )


def address_filter(driver: ConversationDriver, how: AnswerBroadcasts = "model", **options: Any) -> AddressFilter:
    return AddressFilter(
        ("Pump Master", "coder"), how, driver.conversation.calls, lambda: (TOOL,), purpose="Pumps.", **options
    )


@pytest.mark.parametrize(
    ("said", "verdicts"),
    [
        pytest.param(chat("Go.", to=("coder",)), (True, True, True), id="named in to"),
        pytest.param(chat("Go?", to=("bob",)), (False, False, False), id="to another participant"),
        pytest.param(chat("Bob, ask @coder.", to=("bob",)), (True, True, True), id="mentioned with @"),
        pytest.param(chat("Bob, is coder slow?", to=("bob",)), (False, False, False), id="mentioned without @"),
        pytest.param(
            chat("coder said so.", to=("bob",), correlation_id=("x",)), (False, False, False), id="in an answer"
        ),
        pytest.param(chat("pump master, go."), (True, True, True), id="called by its name"),
        pytest.param(chat("The encoder is off."), (False, None, False), id="a statement"),
        pytest.param(chat("Who is there?"), (True, None, False), id="a question to everyone"),
        pytest.param(chat("那里有人吗？"), (True, None, False), id="a question in Chinese"),
        pytest.param(chat("It is at https://pumps.org/?id=7."), (False, None, False), id="an address"),
        pytest.param(chat("Report, please.", needs_reply=True), (True, None, False), id="a chat that needs a reply"),
        pytest.param(chat("Why not?", needs_reply=False), (False, None, False), id="a chat that needs no reply"),
        pytest.param(
            chat("Is that so?", correlation_id=("x",)), (True, True, False), id="a question in a broadcast answer"
        ),
        pytest.param(chat("It is.", correlation_id=("x",)), (False, False, False), id="a broadcast answer"),
    ],
)
async def test_the_rules_decide_chats_that_name_the_agent(
    start_conversation: StartConversation, said: Envelope, verdicts: tuple[bool | None, ...]
) -> None:
    async with start_conversation() as driver:
        ways: tuple[AnswerBroadcasts, ...] = ("rules", "model", "never")
        assert tuple(address_filter(driver, how).check_rules(said) for how in ways) == verdicts
        assert not driver.server.requests


@pytest.mark.parametrize(("reply", "answers"), [("Yes.", True), ("no", False), ("I think: NO, not for me", False)])
async def test_the_model_decides_in_a_side_call(
    start_conversation: StartConversation, reply: str, answers: bool
) -> None:
    async with start_conversation(script=({"text": "Noted."}, {"text": reply})) as driver:
        await driver.turn("One.")
        before = driver.now
        text = "The north pump stands still. " * 200
        assert await address_filter(driver).is_for_us(chat(text)) is answers
        assert without_spending(driver.now) == without_spending(before)
        request: Any = driver.server.requests[-1].body
        system, message = (str(one["content"]) for one in request["messages"])
        assert "'Pump Master'" in system
        assert "Pumps." in system
        assert TOOL.name in system
        assert "One." not in str(request)
        assert len(message) < MAX_CHARS + 100
        assert request["max_completion_tokens" if "max_completion_tokens" in request else "max_tokens"] == 512
        calls = await driver.conversation.state.store.calls()
        assert [(call.role, call.failed) for call in calls] == [("main", None), ("classification", None)]


@pytest.mark.parametrize("options", [{"script": ({"text": "Perhaps."},)}, {"script": ({"status": 500},)}])
@pytest.mark.parametrize(("text", "answers"), [("Who is there?", True), ("It rains.", False)])
async def test_without_an_answer_of_the_model_the_rules_decide(
    start_conversation: StartConversation, options: dict[str, Any], text: str, answers: bool
) -> None:
    async with start_conversation(**options) as driver:
        assert await address_filter(driver).is_for_us(chat(text)) is answers
        assert driver.conversation.calls.last_error_status is None


async def test_a_slow_classification_times_out(start_conversation: StartConversation) -> None:
    async with start_conversation(chunk_delay_seconds=60.0) as driver:
        with anyio.fail_after(PATIENCE_SECONDS):
            assert await address_filter(driver, ask_seconds=1.5).is_for_us(chat("Who is there?"))
        calls = await driver.conversation.state.store.calls()
        assert [(call.role, call.failed) for call in calls] == [("classification", "cancelled")]
        await driver.server.wait_until(lambda: driver.server.requests[0].is_disconnected)
