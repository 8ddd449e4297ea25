"""The JSON Schema files that ship with the protocol."""

import json
from pathlib import Path

import pytest
from mew_protocol import kinds
from mew_protocol.schema import FOLDER, file_name, main, schemas, stale, write


def test_the_files_in_the_repository_are_current() -> None:
    assert stale() == [], "run `make schema`"


def test_every_kind_has_its_file() -> None:
    names = {path.name for path in FOLDER.glob("*.json")}
    assert {file_name(kind) for kind in kinds.ALL_KINDS} <= names
    assert {"envelope.json", "context-report.json", "board.json"} <= names


def test_each_is_a_json_schema_in_the_words_of_the_wire() -> None:
    envelope = json.loads(schemas()["envelope.json"])
    assert envelope["$schema"].startswith("https://json-schema.org/")
    assert "from" in envelope["properties"]
    assert "sender" not in envelope["properties"]
    assert set(envelope["required"]) == {"id", "ts", "from", "kind"}


def test_checking_names_what_is_missing_changed_or_left_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(write(tmp_path)) == len(schemas())
    assert main(["--check", "--folder", str(tmp_path)]) == 0
    (tmp_path / "board.json").write_text("{}", encoding="utf-8")
    (tmp_path / "envelope.json").unlink()
    (tmp_path / "old.json").write_text("{}", encoding="utf-8")
    assert main(["--check", "--folder", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines()] == ["board.json", "envelope.json", "old.json"]
    assert main(["--folder", str(tmp_path)]) == 0
    assert stale(tmp_path) == []
