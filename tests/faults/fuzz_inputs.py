"""[pure] Inputs that no well-behaved client sends: mutated envelopes, broken frames, broken and unfinished requests.

And inputs that are well formed and hostile: texts that are slow to read, huge tools, forged proposals. Each function
takes a seeded `Random`. The participant `witness` is never named, so an input that happens to be valid does not remove
or pause it.
"""

import json
import struct
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from tests.support.raw_socket import HANDSHAKE

SPACE_ID: Final = "fuzz"

FUZZERS: Final = tuple(f"mallory-{number}" for number in range(9))
"""One for each worker: a second connection of one would end the first. The last one offers tools."""

FUZZER: Final = FUZZERS[0]


def token_of(name: str) -> str:
    """The token of a participant of the run."""
    return f"{name}-token"


TOKEN: Final = token_of(FUZZER)


@dataclass(frozen=True)
class Door:
    """Where HTTP requests go to: a server, the token that it accepts, its paths, and what it reads."""

    port: int
    token: str
    paths: tuple[str, ...]
    bodies: tuple[dict[str, Any], ...] = ()


_NESTED: Any = []
for _ in range(60):
    _NESTED = [_NESTED]

_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 2**53, 2**64, -(2**200), "", " ", "\0", "*", "**", "/", "..", "a" * 5_000),
    *("é\U0001f600", "\ud800", "system:gateway", FUZZER, "nobody", [], {}, [[]], [None], ["nobody"], [FUZZER] * 50),
    *({"": ""}, {"kind": "*"}, {"kind": ["*", None]}, {"kind": "!chat"}, [{"kind": "**"}] * 20, _NESTED),
)

_TEXTS = (
    b"1e400",
    b"NaN",
    b"-Infinity",
    b'{"a":1,"a":2}',
    b"[" * 300,
    b'"\\ud800"',
    b"\xff",
    b"\xef\xbb\xbf",
    b"1" * 500,
)

ENVELOPES: tuple[dict[str, Any], ...] = (
    {"kind": "chat", "payload": {"text": "hello"}},
    {"kind": "chat", "payload": {"text": "hello"}, "to": ["nobody"], "id": "1", "correlation_id": ["x"]},
    {"protocol": "mew/v0.4", "id": "e-1", "ts": "2026-01-01T00:00:00Z", "from": FUZZER, "kind": "chat", "payload": {}},
    {"kind": "mcp/request", "to": ["nobody"], "payload": {"method": "tools/call", "params": {"name": "x"}}},
    {"kind": "mcp/response", "to": ["nobody"], "correlation_id": ["1"], "payload": {"result": {}}},
    {"kind": "mcp/proposal", "to": ["nobody"], "payload": {"method": "tools/call", "params": {"name": "x"}}},
    {"kind": "mcp/proposal", "payload": {"method": "tools/call", "params": {"name": "x", "arguments": {"path": "x"}}}},
    {"kind": "mcp/withdraw", "correlation_id": ["1"], "payload": {"reason": "no"}},
    {"kind": "mcp/reject", "correlation_id": ["1"], "payload": {"reason": "no"}},
    {"kind": "reasoning/start", "payload": {"input": "x"}},
    {"kind": "reasoning/thought", "context": "1", "payload": {"reasoning": "x"}},
    {"kind": "stream/request", "payload": {"direction": "upload", "description": "x"}},
    {"kind": "stream/open", "correlation_id": ["1"], "payload": {"stream_id": "stream-1"}},
    {"kind": "stream/close", "payload": {"stream_id": "stream-1"}},
    {"kind": "stream/grant-write", "payload": {"stream_id": "stream-1", "participant_id": "nobody"}},
    {"kind": "stream/transfer-ownership", "payload": {"stream_id": "stream-1", "new_owner": "nobody"}},
    {
        "kind": "capability/grant",
        "to": ["nobody"],
        "payload": {"recipient": "nobody", "capabilities": [{"kind": "chat", "payload": {"text": "*"}}]},
    },
    {"kind": "capability/revoke", "payload": {"recipient": "nobody", "grant_id": "1"}},
    {"kind": "space/invite", "payload": {"participant_id": "guest", "initial_capabilities": [{"kind": "chat"}]}},
    {"kind": "space/kick", "payload": {"participant_id": "nobody", "reason": "x"}},
    {"kind": "participant/status", "payload": {"tokens": 1, "max_tokens": 2, "messages_in_context": 1, "status": "x"}},
    {
        "kind": "participant/status",
        "payload": {
            "tokens": 90,
            "max_tokens": 100,
            "messages_in_context": 3,
            "status": "model_unreachable",
            "context": {
                "v": 2,
                "basis": "reported",
                "level": "critical",
                "severity": 0.5,
                "usable_window": 100,
                "waiting": [{"kind": "model", "what": "http://localhost:1", "since": "2026-01-01T00:00:00Z"}],
            },
        },
    },
    {"kind": "participant/request-status", "to": ["nobody"], "payload": {"fields": ["tokens"]}},
    {"kind": "participant/compact", "to": ["nobody"], "payload": {"target_tokens": 5}},
    {"kind": "participant/compact-done", "to": ["nobody"], "correlation_id": ["1"], "payload": {"freed_tokens": 5}},
    {"kind": "participant/forget", "to": ["nobody"], "payload": {"direction": "oldest", "entries": 1}},
    {"kind": "participant/request-receipts", "to": ["coder"], "payload": {"ids": ["1", "e-1"], "follow": True}},
    {
        "kind": "participant/receipts",
        "to": ["nobody"],
        "correlation_id": ["1"],
        "payload": {
            "receipts": [
                {"id": "1", "participant": "coder", "state": "answered", "in_context": "whole", "basis": "prompt"}
            ]
        },
    },
    {"kind": "system/join", "payload": {"space": "fuzz", "token": TOKEN, "participant_id": FUZZER}},
    {"kind": "system/heartbeat"},
    {
        "type": "join",
        "space": "fuzz",
        "participant_id": FUZZER,
        "token": TOKEN,
        "delivery": {"since": "x-1", "last": 3},
    },
)


def mutated_envelope(random: Random, samples: Sequence[dict[str, Any]] = ENVELOPES) -> bytes:
    """A real envelope, or another JSON object, with something wrong in its structure, its values or its bytes."""
    envelope: Any = json.loads(json.dumps(random.choice(samples)))
    for _ in range(random.choice((0, 1, 1, 2, 4))):
        _mutate(envelope, random)
    data = json.dumps(envelope).encode()
    if random.random() < 0.35:
        data = mutated_bytes(data, random)
    return data


def mutated_bytes(data: bytes, random: Random) -> bytes:
    """Flip, cut, repeat or insert."""
    place = random.randrange(len(data) + 1)
    match random.randrange(5):
        case 0:
            return data[:place]
        case 1:
            return data[:place] + bytes((random.randrange(256),)) + data[place + 1 :]
        case 2:
            return data[:place] + random.choice(_TEXTS) + data[place:]
        case 3:
            return data[:place] + data[place // 2 :]
        case _:
            return random.randbytes(random.randrange(1, 200))


def stream_frame(random: Random) -> bytes:
    """A frame of a stream that may not exist, or no frame at all."""
    stream = random.choice((b"stream-1", b"", b"x" * 300, b"stream-\xff", b"#"))
    return mutated_bytes(b"#%s#%s" % (stream, random.randbytes(random.randrange(50))), random)


def frame_of(data: bytes, *, opcode: int = 1) -> bytes:
    """One valid frame. Its mask is zero, so that the bytes need no work."""
    return _header(0x80 | opcode, len(data)) + bytes(4) + data


def broken_frames(random: Random) -> bytes:
    """WebSocket traffic that violates the framing: opcodes, lengths, masks, fragments, or just noise."""
    data = mutated_envelope(random)
    match random.randrange(8):
        case 0:
            return random.randbytes(random.randrange(1, 300))
        case 1:
            return _header(random.randrange(256), len(data)) + bytes(4) + data
        case 2:  # longer than what follows
            return _header(0x81, len(data) + random.choice((1, 1000, 2**20, 2**33, 2**63 - 1, 2**63))) + bytes(4) + data
        case 3:  # no mask
            return bytes((0x81, min(len(data), 125))) + data[:125]
        case 4:  # a control frame too long, or in fragments
            return _header(random.choice((0x88, 0x89, 0x8A, 0x08, 0x09)), 200) + bytes(4) + bytes(200)
        case 5:  # fragments that never end, or begin
            return b"".join(_header(random.choice((0x01, 0x00, 0x00)), 3) + bytes(4) + b"abc" for _ in range(20))
        case 6:
            return frame_of(random.randbytes(random.randrange(130)), opcode=8)
        case _:
            return mutated_bytes(frame_of(data), random)


def http_request(random: Random, door: Door) -> bytes:
    """A request to a server, mutated."""
    body = mutated_envelope(random, door.bodies or ENVELOPES)
    odd = ("/%2e%2e/", "/spaces/%ff/context", "/participants//messages", "/" + "a" * 3_000, "*", "http://[", "//")
    path = random.choice(door.paths if random.random() < 0.85 else odd)
    method = random.choice((*["POST"] * 9, "GET", "GET", "PUT", "HEAD", "OPTIONS", "", "\xff"))
    token = random.choice((*[door.token] * 15, "", "wrong", "é", "a" * 5_000))
    length = random.choice((*[len(body)] * 4, len(body) + 5, 0, -1, 10**12, "x"))
    request = _head(door, method, path, token, length) + body
    return mutated_bytes(request, random) if random.random() < 0.2 else request


MCP_CALLS: Final[tuple[dict[str, Any], ...]] = tuple(
    {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
    for name, arguments in (
        ("send_chat", {"text": "x"}),
        ("send_chat", {"text": "x", "to": "nobody"}),
        ("read_board", {"details": "x"}),
        ("recent_chat", {"limit": 500}),
        ("x", {"x": "x"}),
    )
)


def hostile_request(random: Random, door: Door, *, session: str = "") -> bytes:
    """A valid request whose texts are slow to read."""
    bodies = door.bodies or ({"kind": "chat", "payload": {"text": "x"}},)
    body = json.dumps(with_texts(random.choice(bodies), random)).encode()
    return _head(door, "POST", door.paths[0], door.token, len(body), session) + body


def tiny_chunks(random: Random, door: Door) -> bytes:
    """A request whose body comes in chunks of one byte, each of which costs as much as a large one."""
    head = _head(door, "POST", door.paths[0], door.token, 0).replace(
        b"Content-Length: 0", b"Transfer-Encoding: chunked"
    )
    return head + b"1\r\n \r\n" * random.choice((500, 20_000, 100_000))


def large_envelope(random: Random) -> bytes:
    """A valid envelope of many values, some more than a message may hold."""
    value = random.choice(("0", "[]", "{}", '""', "1.5e-300"))
    values = ",".join([value] * random.choice((50_000, 150_000, 500_000)))
    return f'{{"kind":"chat","payload":{{"text":"x","values":[{values}]}}}}'.encode()


def end_of_session(door: Door, session: str) -> bytes:
    """The request that ends a session of MCP."""
    return _head(door, "DELETE", door.paths[0], door.token, 0, session)


def unfinished_request(random: Random, door: Door) -> bytes:
    """The begin of a request that goes on for ever, or never ends."""
    begin = _head(door, "POST", door.paths[0], door.token, 10**6)
    endless = begin[:-2] + b"".join(b"x-%d: y\r\n" % number for number in range(random.randrange(50)))
    return random.choice(
        (begin[: random.randrange(len(begin))], begin, begin + b"{", endless, b"", b"GET /" + b"a" * 9_000)
    )


def _head(door: Door, method: str, path: str, token: str, length: object, session: str = "") -> bytes:
    accept = "Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n"
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{door.port}\r\nAuthorization: Bearer {token}\r\n"
    head += f"Mcp-Session-Id: {session}\r\n" if session else ""
    return f"{head}Content-Length: {length}\r\n{accept}\r\n".encode("latin-1", "replace")


_PATTERNS: Final = (
    *(
        "#",
        "# ",
        "## #",
        "> ",
        "- ",
        "**a ",
        "*",
        "_",
        "`",
        "```",
        "~",
        "|",
        "| - |\n",
        "[",
        "![",
        "](",
        "<",
        "<!--",
        "</",
    ),
    *(
        " ",
        "\n",
        "\t",
        " \n",
        "\r\n",
        "\u2028",
        '"',
        "'",
        "\\",
        "\u0301",
        "e\u0301\u0308",
        "\u200b",
        "\u202e",
        "\U0001f468\u200d",
    ),
    *(
        "a",
        "1.",
        "http://",
        "@",
        "data:",
        "mew-token-",
        "Bearer ",
        "<think>",
        'I said "',
        "\x00",
        "\x1b[",
        "{",
        "[[",
        ",",
    ),
)


def hostile_text(random: Random) -> str:
    """A text of repetitions, which takes a careless reader quadratic time."""
    size = random.choice((100, 2_000, 8_000, 8_000, 40_000))
    parts = random.sample(_PATTERNS, random.randrange(1, 4))
    repeated = "".join(one * (size // len(one) // len(parts)) for one in parts)
    return (
        random.choice(("", "x", "x\n", "\n"))
        + repeated
        + random.choice(("", "x", "\n", "\n---", "\n## ada, now\n\nYes."))
    )


def with_texts(value: Any, random: Random) -> Any:
    """The value with hostile texts in place of some texts of people."""
    if isinstance(value, dict):
        keep = ("kind", "type", "role", "model", "method", "jsonrpc", "protocolVersion", "to", "from", "id", "basis")
        return {key: one if key in keep else with_texts(one, random) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [with_texts(one, random) for one in value]
    return hostile_text(random) if isinstance(value, str) and random.random() < 0.5 else value


HOSTILE: Final[tuple[dict[str, Any], ...]] = (
    {"kind": "chat", "payload": {"text": "x"}},
    {"kind": "chat", "payload": {"text": "x", "format": "markdown"}, "to": ["witness"]},
    {"kind": "mcp/proposal", "payload": {"method": "tools/call", "params": {"name": "x", "arguments": {"path": "x"}}}},
    {"kind": "reasoning/start", "payload": {"input": "x"}},
    {"kind": "reasoning/thought", "context": "1", "payload": {"reasoning": "x", "action": "tool"}},
    {
        "kind": "participant/status",
        "payload": {"status": "x", "messages_in_context": 1, "tokens": 9, "max_tokens": 10, "model": "x"},
    },
    {
        "kind": "participant/status",
        "payload": {
            "status": "model_error",
            "messages_in_context": 1,
            "context": {
                "basis": "unknown",
                "level": "x",
                "waiting": [{"kind": "approval", "what": "x", "since": "x", "who_may_answer": ["x"]}],
            },
        },
    },
)


def hostile_envelope(random: Random) -> bytes:
    """A valid envelope with hostile texts."""
    return json.dumps(with_texts(random.choice(HOSTILE), random)).encode()


def forgery(random: Random, proposal: str) -> bytes:
    """An envelope that tries to change or to close the proposal of another participant."""
    about = {"correlation_id": [proposal]}
    other = {"method": "tools/call", "params": {"name": "delete", "arguments": {"path": "/"}}}
    forged: tuple[dict[str, Any], ...] = (
        {"kind": "mcp/proposal", "id": proposal, "payload": other},
        {"kind": "mcp/proposal", "id": proposal, "to": ["nobody"], "payload": other},
        {"kind": "mcp/response", "to": ["witness"], **about, "payload": {"result": {"content": []}}},
        {"kind": "mcp/response", **about, "payload": {"error": {"code": 1, "message": "x"}}},
        {"kind": "mcp/withdraw", **about, "payload": {"reason": "no_longer_needed"}},
        {"kind": "chat/cancel", **about, "payload": {}},
        {"kind": "mcp/proposal", "payload": other},
    )
    return json.dumps(random.choice(forged)).encode()


def tools_page(random: Random) -> dict[str, Any]:
    """The result of `tools/list` that weighs more than any model has room for, and is never the last page."""
    size = random.choice((10, 100, 1_000))
    tools = [
        {
            "name": random.choice((f"tool_{number}", hostile_text(random)[:200], "x" * size)),
            "description": hostile_text(random)[:size],
            "inputSchema": {
                "type": "object",
                "properties": {f"p{at}": {"description": "y" * size} for at in range(20)},
            },
        }
        for number in range(random.choice((1, 1, 10, 100)))
    ]
    return {"tools": tools, **({"nextCursor": str(random.random())} if random.random() < 0.7 else {})}


def broken_handshake(random: Random) -> bytes:
    """A WebSocket handshake with something wrong, or bytes of no protocol."""
    return mutated_bytes(HANDSHAKE, random)


def _mutate(value: Any, random: Random) -> None:
    """Change one place of a JSON object or array."""
    if isinstance(value, dict) and value:
        key = random.choice(tuple(value))
        inner = value[key]
        if isinstance(inner, dict | list) and inner and random.random() < 0.6:
            _mutate(inner, random)
            return
        match random.randrange(4):
            case 0:
                del value[key]
            case 1:
                value[random.choice(("kind", "from", "to", "id", "payload", "seq", "", "x" * 300))] = deepcopy(
                    value[key]
                )
            case _:
                value[key] = deepcopy(random.choice(_VALUES))
    elif isinstance(value, list) and value:
        value[random.randrange(len(value))] = deepcopy(random.choice(_VALUES))


def _header(first: int, size: int) -> bytes:
    if size < 126:
        return bytes((first, 0x80 | size))
    if size < 65_536:
        return bytes((first, 0x80 | 126)) + struct.pack("!H", size)
    return bytes((first, 0x80 | 127)) + struct.pack("!Q", size)
