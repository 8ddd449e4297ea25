"""JSON Schema of the wire, for clients in other languages, generated from the models.

    python -m mew_protocol.schema            write protocol/schema/*.json
    python -m mew_protocol.schema --check    say which of them are not current; exit 1 if any is not

Owns the files' names and their shape. The models remain the one source.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from mew_protocol.context_report import ContextReport
from mew_protocol.envelope import Envelope
from mew_protocol.payloads import PAYLOADS
from mew_protocol.payloads.participant import Board
from mew_protocol.version import PROTOCOL

FOLDER = Path(__file__).with_suffix("")

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def file_name(kind: str) -> str:
    """The schema file of a kind's payload: `chat/acknowledge` is in `payload.chat.acknowledge.json`."""
    return f"payload.{kind.replace('/', '.')}.json"


def schemas() -> dict[str, str]:
    """Every schema file's text by its name."""
    models: dict[str, tuple[type[BaseModel], str]] = {
        "envelope.json": (Envelope, f"{PROTOCOL} envelope"),
        "context-report.json": (ContextReport, "The `context` of participant/status"),
        "board.json": (Board, "GET /spaces/{id}/context"),
    }
    for kind, model in PAYLOADS.items():
        models[file_name(kind)] = (model, f"Payload of {kind}")
    return {name: _text(model, title) for name, (model, title) in sorted(models.items())}


def stale(folder: Path = FOLDER) -> list[str]:
    """Names of files that are missing, differ from the models, or belong to nothing any more."""
    expected = schemas()
    present = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")}
    return sorted(name for name in expected.keys() | present.keys() if expected.get(name) != present.get(name))


def write(folder: Path = FOLDER) -> list[str]:
    """Bring the files up to date. Returns the names of those that changed."""
    changed = stale(folder)
    folder.mkdir(parents=True, exist_ok=True)
    expected = schemas()
    for name in changed:
        if name in expected:
            (folder / name).write_text(expected[name], encoding="utf-8")
        else:
            (folder / name).unlink()
    return changed


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m mew_protocol.schema", description="JSON Schema of the wire")
    parser.add_argument("--check", action="store_true", help="write nothing, fail when a file is not current")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args(arguments)
    names = stale(options.folder) if options.check else write(options.folder)
    for name in names:
        sys.stdout.write(f"{name} {'is not current' if options.check else 'written'}\n")
    return 1 if options.check and names else 0


def _text(model: type[BaseModel], title: str) -> str:
    schema: dict[str, Any] = {"$schema": _DIALECT, **model.model_json_schema(by_alias=True), "title": title}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
