"""Running `mew` inside a test, and a small participant for it to act on."""

import io
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from mew_spaces.gateway.gateway import RunningGateway

from mew_agent.cli.main import run
from tests.support.gateway_client import Client, Message, joined
from tests.support.waiting import PATIENCE_SECONDS, until

REPORT: Message = {
    "basis": "reported",
    "max_tokens_basis": "configured",
    "level": "healthy",
    "severity": 0,
    "measured_at": "2026-01-01T00:00:00Z",
}


@dataclass(frozen=True)
class Outcome:
    """What a command left: its exit code and its two outputs."""

    code: int
    out: str
    err: str


@dataclass
class Output:
    """The outputs of a command that may still run."""

    out: io.TextIOWrapper
    err: io.TextIOWrapper

    @staticmethod
    def empty() -> "Output":
        return Output(*(io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)))

    @staticmethod
    def merged() -> "Output":
        """One stream for both, so that lines stay in order."""
        stream = Output.empty().out
        return Output(stream, stream)

    def text(self, stream: io.TextIOWrapper) -> str:
        buffer = stream.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue().decode()


TOKEN_VARIABLE = "MEW_TOKEN"


async def mew(*arguments: str, output: Output | None = None) -> Outcome:
    """Run a command in a thread, so that the event loop can run the gateway. `MEW_TOKEN=...` is set as in a shell."""
    kept = output or Output.empty()
    token = token_in(arguments)
    words = [one for one in arguments if not one.startswith(f"{TOKEN_VARIABLE}=")]

    def call() -> int:
        with redirect_stdout(kept.out), redirect_stderr(kept.err):
            return run(words)

    os.environ.update(token)

    try:
        with anyio.fail_after(PATIENCE_SECONDS):
            code = await anyio.to_thread.run_sync(call)
    finally:
        for name in token:
            os.environ.pop(name, None)
    return Outcome(code, kept.text(kept.out), kept.text(kept.err))


def token_in(arguments: Sequence[str]) -> dict[str, str]:
    """The variable that `seat` sets."""
    return dict(one.split("=", 1) for one in arguments if one.startswith(f"{TOKEN_VARIABLE}="))


def mew_in(folder: Path, *arguments: str, environment: Mapping[str, str]) -> Outcome:
    """Run a command in a folder, inside the test: a process of its own would import for 0.3 s."""
    kept, before = Output.empty(), dict(os.environ)
    with chdir(folder), Path(os.devnull).open() as nothing, pytest.MonkeyPatch.context() as patch:
        replace_environment(environment)
        patch.setattr(sys, "stdin", nothing)
        try:
            with redirect_stdout(kept.out), redirect_stderr(kept.err):
                code = run(arguments)
        finally:
            replace_environment(before)
    return Outcome(code, kept.text(kept.out), kept.text(kept.err))


def run_program(command: Sequence[str], folder: Path, environment: Mapping[str, str], typed: str = "") -> Outcome:
    """Run a program in a folder, to its end."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        input=typed,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def replace_environment(values: Mapping[str, str]) -> None:
    """Replace all variables of this process."""
    os.environ.clear()
    os.environ.update(values)


def seat(gateway: RunningGateway, participant: str = "ada", *, token: str | None = None) -> tuple[str, ...]:
    """The flags by which a command acts as a participant, and its token for the environment."""
    flags = ("--gateway", gateway.ws_url, "--space", gateway.config.space.id, "--participant", participant)
    return (*flags, f"{TOKEN_VARIABLE}={token or gateway.token_of(participant)}")


Answer = Callable[[Client, Message], Awaitable[None]]


@asynccontextmanager
async def answering(gateway: RunningGateway, name: str, answer: Answer) -> AsyncIterator[Client]:
    """A participant that answers every control and chat addressed to it."""
    async with joined(gateway, name) as client, anyio.create_task_group() as tasks:

        async def listen() -> None:
            while True:
                message = await client.next()
                is_asked = name in (message.get("to") or ()) and message["from"] != "system:gateway"
                if is_asked and message["kind"].startswith(("participant/", "chat")):
                    await answer(client, message)

        tasks.start_soon(listen)
        yield client
        tasks.cancel_scope.cancel()


async def status(client: Client, word: str = "active", *, to: Message | None = None, **more: Any) -> None:
    """Send a status; `to` is the envelope it answers."""
    headers = {"correlation_id": [to["id"]]} if to else {}
    await client.send_envelope("participant/status", {"messages_in_context": 3, "status": word, **more}, **headers)


async def board_shows(gateway: RunningGateway, condition: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until the gateway's board, by participant, is as the condition wants it."""
    await until(lambda: condition({entry.id: entry for entry in gateway.board().participants}))
