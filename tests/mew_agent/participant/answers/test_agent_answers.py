"""Asking an agent: a real agent on a rehearsal model, the answer as events, and a reader who leaves."""

from collections.abc import Callable

import anyio
import pytest
from mew_protocol.envelope import Envelope
from mew_spaces.gateway.gateway import RunningGateway

from mew_agent.errors import NoAnswer, NotPermitted, PeerAbsent
from mew_agent.participant.answers import agent_answers as exchange
from mew_agent.participant.answers.builder import AnswerBuilder, Answered, AnswerEvent, ToolCalled, Writing
from mew_agent.participant.event_handlers import ChatReceived
from mew_agent.participant.participant import Participant
from mew_agent.participant.peers import PeerChanges
from tests.support.agents import EnvelopeRecorder, StartAgent
from tests.support.faulty_link import faulty_link
from tests.support.waiting import PATIENCE_SECONDS, until

Joined = Callable[..., Participant]


async def test_answer_streams_as_events_and_ends_with_text_and_context(start_agent: StartAgent) -> None:
    async with start_agent(tokens_per_chunk=6) as played:
        pieces: list[AnswerEvent] = [piece async for piece in played.ada.ask_agent("coder", "What is the tide?")]
        *before, last = pieces
        assert isinstance(last, Answered)
        written = [piece.text for piece in before if isinstance(piece, Writing)]
        assert len(written) > 1
        assert "".join(written) == last.text
        assert last.sender == "coder"
        assert last.context.basis == "reported"
        assert last.context.tokens == played.reported[-1]["tokens"]


async def test_awaiting_the_stream_gives_the_answer(start_agent: StartAgent) -> None:
    async with start_agent() as played:
        answer = await played.ada.ask_agent("coder", "What is the tide?")
        assert "What is the tide?" in answer.text
        assert len(played.main_requests) == 1


async def test_an_agent_that_could_not_answer_says_why(start_agent: StartAgent) -> None:
    async with start_agent() as played:
        assert (await played.ada.ask_agent("coder", "What is the tide?")).failure is None
        played.server.change(status=401)
        answer = await played.ada.ask_agent("coder", "And now?")
        assert answer.text.startswith("My model refused my key")
        assert answer.failure is not None
        assert "HTTP 401" in answer.failure


async def test_text_before_a_tool_call_is_no_answer(start_agent: StartAgent) -> None:
    def tide(place: str) -> str:
        """How high the tide is."""
        return f"high in {place}"

    async with start_agent(tools=[tide]) as played:
        question = 'Please call tide with {"place": "Brest"}.'
        pieces = [piece async for piece in played.ada.ask_agent("coder", question)]
    (called,) = [piece for piece in pieces if isinstance(piece, ToolCalled)]
    assert (called.name, "Brest" in called.arguments) == ("tide", True)
    assert isinstance(pieces[-1], Answered)
    assert "high in Brest" in pieces[-1].text


async def test_leaving_the_loop_cancels_the_agents_work(joined: Joined) -> None:
    async with joined("ada") as ada, joined("coder") as coder:
        recorder = EnvelopeRecorder(coder)

        @coder.on_chat
        async def begin(chat: ChatReceived) -> None:
            await coder.send("reasoning/start", {"input": chat.text}, correlation_id=(chat.envelope.id,))

        started = anyio.Event()

        @ada.on("reasoning/start")
        async def note(_: Envelope) -> None:
            started.set()

        async def ask() -> None:
            await ada.ask_agent("coder", "Hello?")

        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await started.wait()
                tasks.cancel_scope.cancel()
            chat = await recorder.first("ada", "chat")
            await recorder.first("ada", "chat/cancel", about=chat)
            cancel = await recorder.first("ada", "reasoning/cancel")
        (start,) = recorder.sent_by("coder", "reasoning/start")
        assert cancel.context == start.id


async def test_leaving_the_space_cancels_the_agents_work(joined: Joined) -> None:
    async with joined("coder") as coder:
        recorder = EnvelopeRecorder(coder)

        @coder.on_chat
        async def compact(_: ChatReceived) -> None:
            await coder.send("participant/status", {"messages_in_context": 1, "status": "compacting"})

        with anyio.fail_after(PATIENCE_SECONDS):
            async with joined("ada") as ada:
                async for _ in ada.ask_agent("coder", "Hello?"):
                    break
            chat = await recorder.first("ada", "chat")
            await recorder.first("ada", "chat/cancel", about=chat)


async def test_a_question_left_without_a_gateway_is_cancelled_later(
    gateway: RunningGateway, joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mew_agent.participant.messenger.CANCEL_SECONDS", 0.05)
    async with faulty_link(gateway.port) as link, joined("coder") as coder:
        recorder = EnvelopeRecorder(coder)
        async with Participant(link.url, space="demo", id="ada", token=gateway.token_of("ada")) as ada:

            async def ask() -> None:
                await ada.ask_agent("coder", "Hello?")

            with anyio.fail_after(PATIENCE_SECONDS):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(ask)
                    chat = await recorder.first("ada", "chat")
                    link.go_dark()
                    tasks.cancel_scope.cancel()
                await link.cut()
                link.release()
                await recorder.first("ada", "chat/cancel", about=chat)


async def test_each_missing_answer_raises_its_own_error(joined: Joined, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "RETURN_SECONDS", 0.05)
    async with joined("ada") as ada, joined("bob") as bob:
        with pytest.raises(PeerAbsent):
            await ada.ask_agent("ghost", "Hello?")
        with pytest.raises(NoAnswer, match=r"showed no activity for 0\.05 seconds") as silent:
            await ada.ask_agent("bob", "Hello?", inactivity_seconds=0.05)
        assert silent.value.code == "agent_silent"

        @bob.on_chat
        async def leave(chat: ChatReceived) -> None:
            await bob.aclose()

        with (
            anyio.fail_after(PATIENCE_SECONDS),
            pytest.raises(NoAnswer, match="'bob' left the space before it answered"),
        ):
            await ada.ask_agent("bob", "Hello?")


async def test_a_question_is_not_asked_again_once_its_reader_has_left(joined: Joined) -> None:
    async with joined("ada") as ada, joined("bob") as bob:
        arrived = EnvelopeRecorder(bob)
        async with ada.answers.open("bob", "one", AnswerBuilder(), session="s1") as exchange:
            first = await arrived.first("ada", "chat")
            ada.messenger.pause()
            await bob.messenger.send_envelope(refusal_of_session(bob, first))
            await until(lambda: exchange.chat_id != first.id)
        await arrived.first("ada", "chat/cancel")
        ada.messenger.resume()
        await ada.chat("Something else", to="bob")
        await until(lambda: len(arrived.sent_by("ada", "chat")) > 1)
        assert [one.body["text"] for one in arrived.sent_by("ada", "chat")] == ["one", "Something else"]


async def test_a_session_that_is_refused_twice_is_left_once(joined: Joined) -> None:
    async with joined("ada") as ada, joined("bob") as bob:
        arrived = EnvelopeRecorder(bob)
        form = {"type": "json_object"}
        async with ada.answers.open("bob", "one", AnswerBuilder(), session="s1", response_format=form) as exchange:
            first = await arrived.first("ada", "chat")
            for _ in range(2):  # in one step: no task of ours runs between them
                ada.answers.router.receive(refusal_of_session(bob, first), PeerChanges())
            await until(lambda: len(arrived.sent_by("ada", "chat")) > 1)
            again = arrived.sent_by("ada", "chat")[1]
            await bob.chat("Yes.", to="ada", correlation_id=(again.id,))
            with anyio.fail_after(PATIENCE_SECONDS):
                while await exchange.next_event() is not None:
                    pass
            assert exchange.answer.text == "Yes."
        await ada.chat("Something else", to="bob")
        await until(lambda: arrived.sent_by("ada", "chat")[-1].body["text"] == "Something else")
        _, asked, *others = arrived.sent_by("ada", "chat")
        assert asked.body == {"text": "one", "response_format": form}
        assert len(others) == 1


def refusal_of_session(agent: Participant, chat: Envelope) -> Envelope:
    payload = {"status": "refused:One conversation", "code": "sessions_unsupported"}
    return agent.messenger.draft("chat/acknowledge", payload, to=(chat.sender,), correlation_id=(chat.id,))


async def test_participant_without_the_chat_capability_cannot_ask(joined: Joined) -> None:
    async with joined("mute") as mute, joined("ada") as ada:
        await until(lambda: "ada" in mute.peers)
        mute.messenger.capabilities = type(mute.capabilities)()
        with pytest.raises(NotPermitted):
            await mute.ask_agent("ada", "Hello?")
        assert ada.is_joined


async def test_an_answer_survives_a_lost_connection_of_the_asker(gateway: RunningGateway, joined: Joined) -> None:
    async with faulty_link(gateway.port) as link, joined("bob") as bob:

        @bob.on_chat
        async def answer(chat: ChatReceived) -> None:
            link.stall()
            await link.cut("reset")
            await chat.reply("Here I am.")
            link.release()

        async with Participant(link.url, space="demo", id="ada", token=gateway.token_of("ada")) as ada:
            with anyio.fail_after(PATIENCE_SECONDS):
                answered = await ada.ask_agent("bob", "Hello?")
        assert (answered.text, ada.session.client.joins) == ("Here I am.", 2)
