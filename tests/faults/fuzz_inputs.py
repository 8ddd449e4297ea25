"""[pure] Inputs that no well-behaved client sends: mutated envelopes, broken WebSocket frames, broken HTTP requests.

Each function takes a seeded `Random` and returns bytes. The participant `witness` is never named, so an input that
happens to be valid does not remove or pause it.
"""

import json
import struct
from copy import deepcopy
from random import Random
from typing import Any

from tests.support.raw_socket import HANDSHAKE

FUZZER = "mallory"
TOKEN = "mallory-token"

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


def mutated_envelope(random: Random) -> bytes:
    """A real envelope with something wrong in its structure, its values or its bytes."""
    envelope: Any = json.loads(json.dumps(random.choice(ENVELOPES)))
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


def http_request(random: Random) -> bytes:
    """A request to the HTTP API, mutated."""
    body = mutated_envelope(random)
    path = random.choice(
        (
            *(f"/participants/{FUZZER}/messages?space=fuzz", f"/participants/{FUZZER}/messages?limit=-1&since=x"),
            *(
                "/spaces/fuzz/context",
                "/spaces/fuzz/events?since=%00",
                "/health",
                "/openapi.json",
                "/metrics",
                "/%2e%2e/",
            ),
            *("/spaces/%ff/context", "/participants//messages", "/" + "a" * 3_000, "*", "http://["),
        )
    )
    method = random.choice(("GET", "POST", "POST", "POST", "PUT", "HEAD", "OPTIONS", "", "\xff"))
    token = random.choice((TOKEN, TOKEN, TOKEN, "", "wrong", "é", "a" * 5_000))
    length = random.choice((len(body), len(body), len(body), len(body) + 5, 0, -1, 10**12, "x"))
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: {length}\r\n"
    )
    request = head.encode("latin-1", "replace") + b"Content-Type: application/json\r\n\r\n" + body
    return mutated_bytes(request, random) if random.random() < 0.2 else request


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
