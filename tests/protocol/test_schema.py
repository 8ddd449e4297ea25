"""The JSON Schema files that ship with the protocol."""

import json
from pathlib import Path

import pytest
from mew_protocol.payloads.all_kinds import PAYLOADS
from mew_protocol.schema import FOLDER, file_name, main, outdated, schemas, write


def test_the_files_in_the_repository_are_current() -> None:
    assert outdated() == [], "run `make schema`"


def test_every_kind_has_its_file() -> None:
    names = {path.name for path in FOLDER.glob("*.json")}
    assert {file_name(kind) for kind in PAYLOADS} <= names
    assert {"envelope.json", "context-report.json", "board.json"} <= names


def test_each_schema_uses_the_names_of_the_wire() -> None:
    envelope = json.loads(schemas()["envelope.json"])
    assert envelope["$schema"].startswith("https://json-schema.org/")
    assert "from" in envelope["properties"]
    assert "sender" not in envelope["properties"]
    assert set(envelope["required"]) == {"id", "ts", "from", "kind"}


def test_check_lists_missing_changed_and_surplus_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(write(tmp_path)) == len(schemas())
    assert main(["--check", "--folder", str(tmp_path)]) == 0
    (tmp_path / "board.json").write_text("{}", encoding="utf-8")
    (tmp_path / "envelope.json").unlink()
    (tmp_path / "old.json").write_text("{}", encoding="utf-8")
    assert main(["--check", "--folder", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines()] == ["board.json", "envelope.json", "old.json"]
    assert main(["--folder", str(tmp_path)]) == 0
    assert outdated(tmp_path) == []
