"""Generates JSON Schema of the wire from the models, for clients in other languages.

    python -m mew_protocol.schema            write mew_protocol/schema/*.json
    python -m mew_protocol.schema --check    list outdated files; exit with 1 if there is one

Owns the names and formats of the files.
"""

import argparse
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from mew_protocol.context_report import ContextReport
from mew_protocol.envelope import PROTOCOL, Envelope
from mew_protocol.payloads.all_kinds import PAYLOADS
from mew_protocol.payloads.attention_items import Attention
from mew_protocol.payloads.mcp import UndecidedProposals
from mew_protocol.payloads.participant import Board

FOLDER = Path(__file__).with_suffix("")

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def file_name(kind: str) -> str:
    """Return the schema file of a payload: `payload.chat.acknowledge.json` for `chat/acknowledge`."""
    return f"payload.{kind.replace('/', '.')}.json"


@cache
def schemas() -> dict[str, str]:
    """Return the text of every schema file, by file name."""
    models: dict[str, tuple[type[BaseModel], str]] = {
        "envelope.json": (Envelope, f"{PROTOCOL} envelope"),
        "context-report.json": (ContextReport, "The `context` of participant/status"),
        "board.json": (Board, "GET /spaces/{id}/context"),
        "attention.json": (Attention, "GET /spaces/{id}/attention"),
        "proposals.json": (UndecidedProposals, "GET /spaces/{id}/proposals"),
    }
    for kind, model in PAYLOADS.items():
        models[file_name(kind)] = (model, f"Payload of {kind}")
    return {name: _text(model, title) for name, (model, title) in sorted(models.items())}


def outdated(folder: Path = FOLDER) -> list[str]:
    """Return the names of files that are missing, differ from the models, or belong to no model."""
    expected = schemas()
    present = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")}
    return sorted(name for name in expected.keys() | present.keys() if expected.get(name) != present.get(name))


def write(folder: Path = FOLDER) -> list[str]:
    """Update the files. Returns the names of those that changed."""
    changed, expected = outdated(folder), schemas()
    folder.mkdir(parents=True, exist_ok=True)
    for name in changed:
        if name in expected:
            (folder / name).write_text(expected[name], encoding="utf-8")
        else:
            (folder / name).unlink()
    return changed


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m mew_protocol.schema", description="Generate JSON Schema of the MEW wire protocol."
    )
    parser.add_argument("--check", action="store_true", help="Write nothing; exit with 1 if a file is outdated")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="Folder of the schema files")
    options = parser.parse_args(arguments)
    names = outdated(options.folder) if options.check else write(options.folder)
    for name in names:
        sys.stdout.write(f"{name} {'is outdated' if options.check else 'written'}\n")
    return 1 if options.check and names else 0


def _text(model: type[BaseModel], title: str) -> str:
    schema: dict[str, Any] = {"$schema": _DIALECT, **model.model_json_schema(by_alias=True), "title": title}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
