"""Sessions of clients: how one is chosen, and what an agent is sent for it."""

import json
from typing import Any

import httpx2
import pytest
from openai import APIStatusError, AsyncOpenAI, BadRequestError, RateLimitError

from mew_agent.participant.participant import Participant
from mew_agent.parts.openai_api.request import ApiRequest
from mew_agent.parts.openai_api.session_choice import ChosenSession, ClientSessions, with_transcript
from mew_agent.parts.rehearsal import ScriptedReply, ScriptedToolCall
from mew_agent.parts.shared.api_limits import MAX_TEXT_BYTES, AnswerFailed
from tests.parts.openai_api.conftest import KEY, ChatApiDriver, StartChatApi, content
from tests.support.agents import EnvelopeRecorder, running_agent
from tests.support.api_participants import knows
from tests.support.waiting import until

FIRST = [("user", "One"), ("assistant", "Two")]
ADA = ""  # the name of her API key


def asked(text: str, *earlier: tuple[str, str], **more: Any) -> ApiRequest:
    return ApiRequest("coder", text, earlier=tuple(earlier), **more)


def chosen_after(sessions: ClientSessions, request: ApiRequest, key: str = ADA, nth: int = 1) -> ChosenSession:
    """The session of a request that is then answered with "Two" in the response `r1`."""
    chosen = sessions.choose(request, key, f"new-{nth}")
    sessions.remember(chosen, request, "Two", f"r{nth}")
    return chosen


def test_a_conversation_that_continues_keeps_its_session() -> None:
    sessions = ClientSessions()
    first = chosen_after(sessions, asked("One"))
    second = sessions.choose(asked("Three", ("user", "One"), ("assistant", " Two\n")), ADA, "new-2")
    assert (second.name, second.is_known) == (first.name, True)


def test_a_new_chat_and_a_branch_are_new_sessions() -> None:
    sessions = ClientSessions()
    first = chosen_after(sessions, asked("One"))
    new = chosen_after(sessions, asked("Other"), nth=2)
    sessions.choose(asked("Three", *FIRST), ADA, "new-3")
    branch = sessions.choose(asked("Edited", *FIRST), ADA, "new-4")
    assert len({first.name, new.name, branch.name}) == 3
    assert not branch.is_known


@pytest.mark.parametrize(("key", "user"), [("bob", ""), (ADA, "bob")])
def test_clients_never_enter_a_session_of_another(key: str, user: str) -> None:
    sessions = ClientSessions()
    first = chosen_after(sessions, asked("One"))
    assert sessions.choose(asked("Three", *FIRST, user=user), key, "new-2").name != first.name
    with pytest.raises(AnswerFailed, match="is not known for this model, API key and user"):
        sessions.choose(asked("Three", previous_response="r1", user=user), key, "new-3")
    named = ClientSessions()
    names = {
        named.choose(asked("x", user=user, conversation="a"), key, "n").name
        for key, user in (("", ""), ("", "a"), ("a", ""))
    }
    assert len(names) == 3


def test_a_client_is_one_session_if_configured() -> None:
    sessions = ClientSessions("client")
    assert chosen_after(sessions, asked("One")).name == chosen_after(sessions, asked("Other")).name
    assert sessions.choose(asked("x", user="bob"), ADA, "n").name != sessions.choose(asked("x"), ADA, "n").name


def test_shared_sessions_are_the_agents_own_conversation() -> None:
    assert ClientSessions("shared").choose(asked("x", user="bob", conversation="chat"), "key", "n").name == "main"


def test_only_the_newest_response_of_a_conversation_continues() -> None:
    sessions = ClientSessions()
    first = chosen_after(sessions, asked("One"))
    second = chosen_after(sessions, asked("Two", previous_response="r1"), nth=2)
    assert second.name == first.name
    with pytest.raises(AnswerFailed, match="is not the newest of its conversation"):
        sessions.choose(asked("Three", previous_response="r1"), ADA, "new")


def test_a_transcript_that_is_too_long_loses_its_oldest_messages() -> None:
    text, is_cut = with_transcript(asked("Now", ("user", "x" * MAX_TEXT_BYTES), ("assistant", "kept")))
    assert is_cut
    assert text == "Earlier in this conversation:\n\nassistant: kept\n\nNow the user writes:\n\nNow"
    assert with_transcript(asked("Now")) == ("Now", False)


# -- with an agent -----------------------------------------------------------------------------------------------


def messages(built: ChatApiDriver) -> Any:
    """The messages of the newest request to the model."""
    return built.driver.main_requests[-1].body["messages"]


def sent(built: ChatApiDriver) -> str:
    """These messages as text."""
    return json.dumps(messages(built))


async def talk(built: ChatApiDriver, *texts: str, client: AsyncOpenAI | None = None, **more: Any) -> Any:
    """Send alternating texts of user and assistant; the last is the user's."""
    roles = ("user", "assistant")
    messages: Any = [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
    return await (client or built.client).chat.completions.create(model="coder", messages=messages, **more)


async def test_a_new_chat_is_new_and_an_old_one_continues(chat: StartChatApi) -> None:
    async with chat() as built:
        first = await talk(built, "The valve is blue.")
        await talk(built, "Which valve?")
        new = sent(built)
        reply = first.choices[0].message.content
        again = await talk(built, "The valve is blue.", reply, "What colour?")
        continued = messages(built)
    assert "blue" not in new
    assert [message["content"] for message in continued[-3:]] == ["The valve is blue.", reply, "What colour?"]
    assert again.mew["session"] == first.mew["session"]


async def test_a_request_that_was_not_sent_continues_when_it_is_repeated(chat: StartChatApi) -> None:
    async with chat() as built:
        first = await talk(built, "The valve is blue.")
        said = ("The valve is blue.", first.choices[0].message.content, "What colour?")
        await built.driver.ada.send("participant/pause", {}, to="bob")
        await until(lambda: built.participant.messenger.is_paused)
        with pytest.raises(APIStatusError, match="is paused"):
            await talk(built, *said)
        await built.driver.ada.send("participant/resume", {}, to="bob")
        await until(lambda: not built.participant.messenger.is_paused)
        again = await talk(built, *said)
    assert again.mew["session"] == first.mew["session"]


async def test_a_streamed_answer_continues(chat: StartChatApi) -> None:
    async with chat() as built:
        chunks = await built.stream("The valve is blue.")
        again = await talk(built, "The valve is blue.", content(chunks), "What colour?")
    assert again.mew["session"] == chunks[-1].mew["session"]


async def test_an_edited_chat_is_sent_with_its_transcript(chat: StartChatApi) -> None:
    async with chat() as built:
        await talk(built, "The valve is red.", "Noted.", "What colour?")
        text = messages(built)[-1]["content"]
    assert text.startswith("Earlier in this conversation:\n\nuser: The valve is red.\n\nassistant: Noted.")
    assert text.endswith("Now the user writes:\n\nWhat colour?")


async def test_a_named_conversation_needs_no_earlier_messages(chat: StartChatApi) -> None:
    async with chat() as built:
        for text in ("The valve is blue.", "What colour?"):
            await talk(built, text, extra_headers={"X-Mew-Session": "chat-7"})
        named = sent(built)
        await talk(built, "What colour?", user="bob", extra_headers={"X-Mew-Session": "chat-7"})
        assert "blue" in named
        assert "blue" not in sent(built)


async def test_api_keys_have_sessions_of_their_own(chat: StartChatApi) -> None:
    keys = {"ada": "key-a", "bob": "key-b"}
    async with (
        chat(app={"api_key": keys, "sessions": "client"}) as built,
        AsyncOpenAI(base_url=built.base_url, api_key="key-a") as ada,
        AsyncOpenAI(base_url=built.base_url, api_key="key-b") as bob,
        httpx2.AsyncClient() as http,
    ):
        refused = await http.get(f"{built.base_url}/models", headers={"authorization": f"Bearer {KEY}"})
        await talk(built, "The valve is blue.", client=ada)
        await talk(built, "What colour?", client=bob)
        other = sent(built)
        await talk(built, "What colour?", client=ada)
        assert "blue" not in other
        assert "blue" in sent(built)
    assert refused.status_code == 401


async def test_the_client_learns_of_a_deleted_session(chat: StartChatApi) -> None:
    async with chat(agent={"max_sessions": 1}) as built:
        first = await talk(built, "The valve is blue.")
        await talk(built, "Something else")
        again = await talk(built, "The valve is blue.", first.choices[0].message.content, "What colour?")
        assert "blue" in sent(built)
    assert again.mew["warnings"] == ["the agent no longer had this conversation; it read the earlier messages again"]


async def test_usage_adds_up_the_calls_of_a_turn(chat: StartChatApi) -> None:
    def word_count(text: str) -> int:
        """Count the words of a text."""
        return len(text.split())

    call = ScriptedToolCall(name="word_count", arguments='{"text": "a b"}')
    script = (ScriptedReply(tool_calls=(call,)), ScriptedReply(text="Two."))
    async with chat(tools=[word_count], script=script) as built:
        answer = await talk(built, "Count a b")
        prompts = [request.prompt_tokens for request in built.driver.main_requests]
    assert len(prompts) == answer.mew["calls"] == 2
    assert answer.usage.prompt_tokens == sum(prompts)
    assert answer.mew["last_call"]["prompt_tokens"] == prompts[-1]


# -- response_format ---------------------------------------------------------------------------------------------

SCHEMA = {"type": "json_schema", "json_schema": {"name": "colour", "schema": {"type": "object"}}}


async def test_a_response_format_reaches_the_model(chat: StartChatApi) -> None:
    async with chat(script=(ScriptedReply(text='{"colour": "blue"}'),)) as built:
        answer = await talk(built, "What colour?", response_format=SCHEMA)
        assert built.driver.main_requests[-1].body["response_format"] == SCHEMA
    assert json.loads(answer.choices[0].message.content) == {"colour": "blue"}


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (ScriptedReply(status=400), "could not answer in this format: .*HTTP 400"),
        (ScriptedReply(text="It is blue."), "did not keep to the format; it answered: It is blue."),
    ],
)
async def test_a_model_without_response_format_is_an_error(
    chat: StartChatApi, reply: ScriptedReply, words: str
) -> None:
    async with chat(script=(reply,)) as built:
        with pytest.raises(BadRequestError, match=words) as caught:
            await talk(built, "What colour?", response_format={"type": "json_object"})
    assert caught.value.param == "response_format"


async def test_the_client_learns_that_an_agent_has_no_sessions(chat: StartChatApi, joined: Any) -> None:
    """An agent of another implementation: it reads neither `session` nor `response_format`."""
    async with chat(options={"configured": frozenset({"writer"})}) as built, joined("writer") as writer:
        await answer_plainly(writer)
        await knows(built.participant, "writer")
        answer = await built.ask("What colour?", model="writer")
        with pytest.raises(BadRequestError, match="'writer' does not support response_format"):
            await built.ask("What colour?", model="writer", response_format=SCHEMA)
    assert answer.mew["warnings"] == ["'writer' keeps no sessions: all clients share one conversation with it"]
    assert answer.usage is None


async def test_an_agent_that_refuses_sessions_is_asked_without(chat: StartChatApi, joined: Any) -> None:
    async with chat(options={"configured": frozenset({"writer"})}) as built, joined("writer") as writer:
        await answer_plainly(writer, refuses=("session", "response_format"))
        await writer.report_context(500, window=20_000)
        await knows(built.participant, "writer")
        with pytest.raises(BadRequestError, match="refused the question: It takes none") as refused:
            await built.ask("What colour?", model="writer", response_format=SCHEMA)
        answers = [await built.ask("What colour?", model="writer") for _ in range(2)]
    assert (refused.value.param, refused.value.code) == ("response_format", "response_format_unsupported")
    warning = "'writer' keeps no sessions: all clients share one conversation with it"
    assert [(one.choices[0].message.content, one.mew["warnings"]) for one in answers] == [("Blue.", [warning])] * 2


async def test_an_agent_without_a_status_keeps_its_clients_apart(chat: StartChatApi) -> None:
    options = {"configured": frozenset({"quiet"})}
    async with (
        chat(options=options) as built,
        running_agent(built.driver.gateway, built.driver.server, None, None, 30.0, "quiet", ()),
    ):
        await until(lambda: "quiet" in built.participant.peers)
        first = await built.ask("My word is swordfish.", model="quiet", user="ada")
        second = await built.ask("What did others say?", model="quiet", user="bob")
        assert "swordfish" not in sent(built)
    assert first.mew["session"] != second.mew["session"]
    assert "warnings" not in first.mew


async def test_a_refusal_in_a_chat_is_an_error_and_leaves_the_clients_apart(chat: StartChatApi) -> None:
    async with chat(name="mute", agent={"loop_limits": {"tokens_per_hour": 1}}) as built:
        await built.ask("My word is swordfish.", model="mute", user="ada")
        built.client = built.client.with_options(max_retries=0)
        arrived = EnvelopeRecorder(built.driver.agent)
        for user in ("bob", "ada"):
            with pytest.raises(RateLimitError, match=r"refused the question: .* of 1 tokens per hour are spent"):
                await built.ask("What did others say?", model="mute", user=user)
        names = [one.body["session"] for one in arrived.sent_by("bob", "chat")]
    assert [name.split("-")[0] for name in names] == ["bob", "ada"]


async def test_one_answer_without_a_session_does_not_mix_the_clients(chat: StartChatApi, joined: Any) -> None:
    async with chat(options={"configured": frozenset({"writer"})}) as built, joined("writer") as writer:
        await answer_plainly(writer)
        await knows(built.participant, "writer")
        arrived = EnvelopeRecorder(writer)
        for user in ("ada", "bob"):
            await built.ask("What colour?", model="writer", user=user)
        names = [one.body["session"] for one in arrived.sent_by("bob", "chat")]
    assert [name.split("-")[0] for name in names] == ["ada", "bob"]


async def test_a_format_outlives_a_refused_session(chat: StartChatApi, joined: Any) -> None:
    async with chat(options={"configured": frozenset({"writer"})}) as built, joined("writer") as writer:
        await answer_plainly(writer, refuses=("session",), text='{"colour": "blue"}')
        await writer.report_context(500, window=20_000)
        await knows(built.participant, "writer")
        arrived = EnvelopeRecorder(writer)
        answers = [await built.ask("What colour?", model="writer", response_format=SCHEMA) for _ in range(2)]
        chats = [(("session" in one.body), one.body.get("response_format")) for one in arrived.sent_by("bob", "chat")]
    assert chats == [(True, SCHEMA), (False, SCHEMA)] * 2
    assert [one.choices[0].message.content for one in answers] == ['{"colour": "blue"}'] * 2


async def answer_plainly(agent: Participant, refuses: tuple[str, ...] = (), text: str = "Blue.") -> None:
    """Answer every chat with a fixed text, and report a status without a context report."""
    EnvelopeRecorder(agent)

    @agent.on("chat")
    async def answer(chat: Any) -> None:
        for key in reversed(refuses):
            if key in chat.body:
                code = f"{key.replace('session', 'sessions')}_unsupported"
                refusal = {"status": "refused:It takes none", "code": code}
                await agent.send("chat/acknowledge", refusal, to=chat.sender, correlation_id=(chat.id,))
                return
        await agent.chat(text, to=chat.sender, correlation_id=(chat.id,))

    await agent.send("participant/status", {"messages_in_context": 1, "max_tokens": 20_000, "status": "active"})
