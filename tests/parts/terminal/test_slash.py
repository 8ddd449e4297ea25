"""Slash commands that stand for one envelope."""

import pytest
from mew_settings.roles import invitation

from mew_agent.parts.terminal.slash import InvalidLine, TypedEnvelope, as_typed, call, control, stream


@pytest.mark.parametrize(
    ("line", "kind", "payload"),
    [
        ("/status coder", "participant/request-status", {}),
        ("/status coder tokens latency", "participant/request-status", {"fields": ["tokens", "latency"]}),
        ("/pause coder", "participant/pause", {}),
        ("/pause coder 30 for lunch", "participant/pause", {"timeout_seconds": 30.0, "reason": "for lunch"}),
        ("/pause coder for lunch", "participant/pause", {"reason": "for lunch"}),
        ("/pause coder -1", "participant/pause", {"reason": "-1"}),
        ("/resume coder", "participant/resume", {}),
        ("/forget coder", "participant/forget", {"direction": "oldest"}),
        ("/forget coder newest 3", "participant/forget", {"direction": "newest", "entries": 3}),
        ("/forget coder 3", "participant/forget", {"direction": "oldest", "entries": 3}),
        ("/compact coder", "participant/compact", {}),
        ("/compact coder 5000 too long", "participant/compact", {"target_tokens": 5000, "reason": "too long"}),
        ("/clear coder new task", "participant/clear", {"reason": "new task"}),
        ("/reset coder start afresh", "participant/restart", {"reason": "start afresh"}),
        ("/undo coder 3", "participant/undo", {"number": 3}),
        ("/undo coder", "participant/undo", {}),
        ("/recall coder door code", "participant/recall", {"words": "door code"}),
        ("/shutdown coder", "participant/shutdown", {}),
    ],
)
def test_control_starts_with_the_participant(line: str, kind: str, payload: dict[str, object]) -> None:
    command, *parts = line.split()
    assert control(command, parts) == TypedEnvelope(kind, payload, ("coder",))


@pytest.mark.parametrize(
    ("line", "kind", "payload"),
    [
        (
            "/grant bob mcp/proposal",
            "capability/grant",
            {"recipient": "bob", "capabilities": [{"kind": "mcp/proposal"}]},
        ),
        ("/revoke @bob chat", "capability/revoke", {"recipient": "bob", "capabilities": [{"kind": "chat"}]}),
        (
            "/invite eve chat mcp/*",
            "space/invite",
            {
                "participant_id": "eve",
                "initial_capabilities": [{"kind": "chat"}, {"kind": "mcp/*"}],
                "several_sockets": True,
            },
        ),
        ("/invite eve agent", "space/invite", invitation("eve", ["agent"])),
        ("/remove eve", "space/kick", {"participant_id": "eve"}),
    ],
)
def test_gateway_obeys_controls_of_membership(line: str, kind: str, payload: dict[str, object]) -> None:
    command, *parts = line.split()
    assert control(command, parts) == TypedEnvelope(kind, payload)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/dance coder", "unknown command /dance"),
        ("/pause", "/pause needs a participant"),
        ("/forget coder newest many", "'many' is not a number of messages"),
        ("/forget coder 0", "'0' is not a number"),
        ("/invite eve robot", "'robot' is not one of agent, tool, person, observer, or a kind"),
    ],
)
def test_invalid_control_is_refused(line: str, said: str) -> None:
    command, *parts = line.split()
    with pytest.raises(InvalidLine, match=said):
        control(command, parts)


def test_call_becomes_an_mcp_request() -> None:
    sent = call('files read_file {"path": "a b.md"}')
    assert (sent.kind, sent.to) == ("mcp/request", ("files",))
    assert sent.payload["method"] == "tools/call"
    assert sent.payload["params"] == {"name": "read_file", "arguments": {"path": "a b.md"}}
    assert call("maze look").payload["params"] == {"name": "look", "arguments": {}}


@pytest.mark.parametrize(
    ("rest", "said"), [("files", "PARTICIPANT TOOL"), ("f t {x", "not JSON"), ("f t [1]", "object")]
)
def test_incomplete_call_is_refused(rest: str, said: str) -> None:
    with pytest.raises(InvalidLine, match=said):
        call(rest)


def test_stream_request_carries_description_and_size() -> None:
    sent = stream(["request", "gateway", "upload", "server", "logs", "size=2048"])
    assert sent == TypedEnvelope(
        "stream/request",
        {"direction": "upload", "expected_size_bytes": 2048, "description": "server logs"},
        ("gateway",),
    )
    closed = stream(["close", "stream-1", "done"])
    assert closed == TypedEnvelope("stream/close", {"stream_id": "stream-1", "reason": "done"}, (), ("stream-1",))
    with pytest.raises(InvalidLine, match="/stream request"):
        stream(["open"])


def test_typed_envelope_keeps_its_headers() -> None:
    value = {
        "kind": "chat",
        "to": "bob",
        "correlation_id": ["x"],
        "context": "c",
        "payload": {"text": "t"},
        "from": "eve",
    }
    assert as_typed(value) == TypedEnvelope("chat", {"text": "t"}, ("bob",), ("x",), "c")
    assert as_typed({"kind": "x", "payload": 1, "to": 5}) == TypedEnvelope("x", {})
