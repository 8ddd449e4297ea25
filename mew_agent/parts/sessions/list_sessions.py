"""`mew sessions`: the conversations that the agents of a space have stored, one file each.

Lists, prints and exports them. `mew_agent.context` defines session files.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeVar

import anyio
from mew_board import words
from mew_board.quoting import clean, indented, markdown_block, markdown_line
from mew_settings.setting_problems import did_you_mean
from mew_spaces.gateway.auth import state_dir

from mew_agent.cli.app import terminal
from mew_agent.cli.app.locate import relative_to, space_config_path, space_folder
from mew_agent.cli.app.options import OUTPUT, FolderOption, option, participant_argument
from mew_agent.context.history import Item
from mew_agent.context.sqlite_store import SqliteStore
from mew_agent.context.store import StoreLimits
from mew_agent.errors import ConfigError
from mew_agent.program import run_until_signal

T = TypeVar("T")

_COLUMNS = "{:<16}  {:>10}  {:>10}  {:>7}  {:>7}  {:>9}  {}"


def sessions(
    agent: Annotated[
        str | None, participant_argument("Print the conversation of this agent (default: list all).", "AGENT")
    ] = None,
    *,
    as_markdown: Annotated[bool, option("--markdown", "Print a Markdown document.")] = False,
    last: Annotated[int | None, option("--last, -n N", "Print only the newest N items (default: all).", min=1)] = None,
    days: Annotated[float | None, option("--prune-days N", "Prune items older than N days instead.", min=0.0)] = None,
    space_dir: FolderOption = None,
) -> None:
    """List, print or prune stored conversations.

    Lists items in context, items that compactions removed, model calls, unanswered chats and the size. Prints a
    conversation oldest first, with the removed items. Prunes only removed items and records of model calls, of AGENT or
    of all. Stop the agents before you prune: a running agent can delay it.
    """
    if days is not None:
        _prune(_files(space_dir) if agent is None else [_file(agent, space_dir)], StoreLimits(days))
    elif agent is None:
        _list(space_dir)
    else:
        _print_conversation(agent, _file(agent, space_dir), last, as_markdown=as_markdown)


def _list(space_dir: Path | None) -> None:
    files = _files(space_dir)
    rows = list(zip(files, _ask(SqliteStore.overview, *files), strict=True))
    if OUTPUT.is_json:
        terminal.print_json([{"agent": path.stem, "file": str(path), **asdict(row)} for path, row in rows])
        return
    terminal.print_line(_COLUMNS.format("AGENT", "IN CONTEXT", "REMOVED", "CALLS", "OPEN", "KILOBYTES", "LAST"))
    for path, row in rows:
        counts = (row.items, row.evicted, row.calls, row.open_chats)
        terminal.print_line(_COLUMNS.format(path.stem, *counts, f"{row.size_bytes // 1024:,}", row.newest_at or "-"))


def _print_conversation(agent: str, file: Path, last: int | None, *, as_markdown: bool) -> None:
    progress = terminal.ProgressLine()

    def show(read: int, total: int) -> None:
        progress.show(f"reading the conversation of {agent}, {words.share_of(read, total)} of {total:,} items")

    (items,) = _ask(lambda store: store.items(last, show), file, progress=progress)
    if OUTPUT.is_json:
        terminal.print_json([asdict(item) for item in items])
    else:
        terminal.print_lines(_markdown(agent, items) if as_markdown else map(_text_line, items))


def _text_line(item: Item) -> str:
    who = f"{item.role} ({item.name})" if item.name else item.role
    calls = "".join(f" [calls {call.name} {call.arguments}]" for call in item.tool_calls)
    return "\n".join(clean(line) for line in indented(f"{item.at}  {who}: {item.content}{calls}").split("\n"))


def _markdown(agent: str, items: Sequence[Item]) -> Iterator[str]:
    """Yield a conversation as Markdown: a heading for each item, with texts in code blocks that they cannot close."""
    yield f"# {markdown_line(agent)}"
    for item in items:
        yield ""
        yield f"## {markdown_line(f'{item.at} {item.name or item.role}')}"
        yield ""
        if item.content or item.role == "tool":
            yield markdown_block(item.content, "" if item.role == "tool" else "markdown")
        for call in item.tool_calls:
            yield from ("", f"Calls {markdown_line(call.name)}:", "", markdown_block(call.arguments, "json"))


def _prune(files: list[Path], limits: StoreLimits) -> None:
    pruned = list(zip(files, _ask(lambda store: store.prune(limits), *files), strict=True))
    if OUTPUT.is_json:
        terminal.print_json([{"agent": path.stem, **asdict(done)} for path, done in pruned])
    for path, done in () if OUTPUT.is_json else pruned:
        freed = (done.bytes_before - done.bytes_after) // 1024
        terminal.print_line(f"{path.stem}: removed {done.items:,} items and {done.calls:,} calls, {freed:,} kilobytes")


def _files(space_dir: Path | None) -> list[Path]:
    return sorted((state_dir(space_config_path(None, space_dir)) / "sessions").glob("*.db"))


def _file(agent: str, space_dir: Path | None) -> Path:
    config = space_config_path(None, space_dir)
    known = {path.stem: path for path in _files(space_dir)}
    if agent not in known:
        folder = relative_to(space_folder(config), state_dir(config) / "sessions")
        raise ConfigError("AGENT", f"'{agent}' has no session in {folder}{did_you_mean(agent, known)}")
    return known[agent]


def _ask(
    question: Callable[[SqliteStore], Awaitable[T]], *paths: Path, progress: terminal.ProgressLine | None = None
) -> list[T]:
    """Ask each of these sessions in turn. A signal ends this after the current session."""
    line = terminal.ProgressLine() if progress is None else progress

    async def ask() -> list[T]:
        answers = []
        for number, path in enumerate(paths, 1):
            line.show(f"reading the conversation of {path.stem}{f', {number} of {len(paths)}' if paths[1:] else ''}")
            store = SqliteStore(path)
            try:
                answers.append(await question(store))
            finally:
                with anyio.CancelScope(shield=True):
                    await store.aclose()
        return answers

    with line:
        answers = run_until_signal(ask)
    if answers is None:  # SIGTERM
        raise KeyboardInterrupt
    return answers
