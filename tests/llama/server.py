"""A running llama.cpp server on a free loopback port, and what its own endpoints say. Knows no test."""

import contextlib
import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PATIENCE_SECONDS = 60.0
_LISTENS = re.compile(r"listening on (http://127\.0\.0\.1:\d+)")
_SAMPLING = ("--seed", "12", "--temp", "1", "--top-k", "0", "--top-p", "1", "--min-p", "0")
"""Chance from a seed, and no token left out of it."""


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """One server: `window_tokens` is what each of its slots has."""

    root: str
    window_tokens: int
    log: Path

    @property
    def base_url(self) -> str:
        return f"{self.root}/v1"

    def get(self, path: str) -> Any:
        """Ask one of the server's own endpoints."""
        return _json(urllib.request.Request(f"{self.root}{path}"))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return _json(urllib.request.Request(f"{self.root}{path}", json.dumps(body).encode(), method="POST"))

    def tokenize(self, text: str, *, with_marks: bool = False) -> list[int]:
        """Token ids of a text; `with_marks` reads the marks of special tokens in it as these."""
        answer = self.post("/tokenize", {"content": text, "add_special": False, "parse_special": with_marks})
        return [int(token) for token in answer["tokens"]]

    def prompt_of(self, messages: Sequence[dict[str, Any]], **body: Any) -> str:
        """What the chat template makes of these messages."""
        return str(self.post("/apply-template", {"messages": list(messages), **body})["prompt"])

    @property
    def slots(self) -> list[dict[str, Any]]:
        """What each slot is doing."""
        return list(self.get("/slots"))

    @property
    def busy_slots(self) -> int:
        return sum(bool(slot["is_processing"]) for slot in self.slots)


@contextmanager
def running_server(
    program: Path, model: Path, log: Path, *, window_tokens: int = 4096, slots: int = 1, extra: Sequence[str] = ()
) -> Iterator[LlamaServer]:
    """Start a server, wait until it has loaded the model, and stop it at the end."""
    command = [str(program), "--model", str(model), "--alias", "tiny", "--host", "127.0.0.1", "--port", "0"]
    command += ["--ctx-size", str(window_tokens * slots), "--parallel", str(slots), "--no-kv-unified", "--threads", "1"]
    command += ["--offline", "--no-warmup", "--no-ui", *_SAMPLING, *extra]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process:
        try:
            yield LlamaServer(_address(process, log), window_tokens, log)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


def _address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Wait for the line that names the address, and for the model behind it."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        said = _LISTENS.search(log.read_text(errors="replace"))
        if said is not None:
            with contextlib.suppress(OSError):
                if _json(urllib.request.Request(f"{said[1]}/health"))["status"] == "ok":
                    return said[1]
        time.sleep(0.05)  # a program of its own: there is nothing to wait on but its answers
    raise RuntimeError(f"llama-server did not come up; its log ends with:\n{log.read_text(errors='replace')[-2000:]}")


def _json(request: urllib.request.Request) -> Any:
    request.add_header("content-type", "application/json")
    # Without the environment's proxies, which cannot reach this machine's own servers.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=_PATIENCE_SECONDS) as answer:
        return json.loads(answer.read())
