"""Runs a server in a process of its own and asks it for figures, for the benchmarks that measure a server."""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def answer_requests(control: Any, figure: Callable[[], float] = time.process_time) -> None:
    """Answer each request with a figure of this process (default: its CPU seconds) until asked to stop, in a thread."""

    def answer() -> None:
        while control.recv() != "stop":
            control.send(figure())
        os._exit(0)

    threading.Thread(target=answer, daemon=True).start()


@contextmanager
def server_process(run: Callable[..., None], *arguments: Any) -> Iterator[tuple[Any, Any]]:
    """Run `run(control, *arguments)` in a process: what it sends first, such as its port, and the pipe for requests."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run, args=(theirs, *arguments), daemon=True)
    process.start()
    try:
        yield ours.recv(), ours
    finally:
        ours.send("stop")
        process.join(10)


def ask(control: Any) -> float:
    """Return the figure of a server process."""
    control.send("figure")
    return float(control.recv())
