"""Measures what the openai package does before a call, with the conversation as a parameter and in `extra_body`.

    python -m benchmarks.requests [--messages 30 300 1200]

The processor time until the request is sent, in milliseconds, best of 15. The provider is a function in this process.
"""

import argparse
import time
from typing import Any

import anyio
import httpx2
import openai

BEST_OF = 15
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{number}",
            "parameters": {"type": "object", "properties": {key: {"type": "string"} for key in "abcdef"}},
        },
    }
    for number in range(30)
]


def conversation(messages: int) -> list[Any]:
    """Questions, calls of a tool with their results."""
    call = {"id": "c", "type": "function", "function": {"name": "tool_1", "arguments": '{"a": 1}'}}
    turn = [
        {"role": "user", "content": "question " * 40},
        {"role": "assistant", "content": "answer " * 40, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "result " * 100},
    ]
    return turn * (messages // len(turn))


async def milliseconds(client: openai.AsyncOpenAI, **arguments: Any) -> float:
    """Return the best time of a call."""
    times = []
    for _ in range(BEST_OF):
        started = time.process_time()
        await client.chat.completions.with_raw_response.create(model="m", stream=True, **arguments)
        times.append(time.process_time() - started)
    return min(times) * 1000


async def main(sizes: list[int]) -> None:
    """Print a row for each number of messages."""
    end = httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=b"data: [DONE]\n\n")
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(lambda _request: end))
    async with openai.AsyncOpenAI(api_key="x", base_url="http://provider/v1", http_client=http) as client:
        print(f"{'messages':>8} {'parameter':>10} {'extra_body':>10}")
        for size in sizes:
            body: dict[str, Any] = {"messages": conversation(size), "tools": TOOLS}
            parameter = await milliseconds(client, **body)
            extra_body = await milliseconds(client, messages=(), extra_body=body)
            print(f"{size:8,} {parameter:10.1f} {extra_body:10.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, nargs="+", default=[30, 300, 1200])
    anyio.run(main, parser.parse_args().messages)
