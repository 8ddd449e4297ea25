"""A2A as the SDK's own client sees it: cards, messages, streams, cancels, figures and errors."""

from a2a.types import TaskState

from tests.mew_agent.a2a.conftest import WITH_CONTEXT, StartA2A, report_in

ASK = "What do the harbour records say about the tide gauge at the northern pier?"


async def test_message_is_answered_with_the_reported_figures(a2a: StartA2A) -> None:
    async with a2a() as built:
        task = await built.send(ASK, context=WITH_CONTEXT)
        answered = await built.driver.recorder.first("coder", "chat")
        plain = await built.send(ASK)
    status = answered.body["turn"]["status"]
    assert task.status.state == TaskState.TASK_STATE_COMPLETED
    assert "".join(part.text for part in task.artifacts[0].parts) == answered.body["text"]
    report = report_in(task.metadata)
    assert report["participant"] == "coder"
    assert report["tokens"] == status["tokens"]
    assert report["context"]["basis"] == "reported"
    assert report["context"]["call_id"] == status["context"]["call_id"]
    assert report_in(plain.metadata) == {}
