"""The demo's texts and space; tests/interaction runs all of it as processes."""

import json
from pathlib import Path

import pytest
from mew_spaces.config.loading import load_space

from mew_agent.errors import ConfigError
from mew_agent.parts.demo import demo
from mew_agent.parts.demo.demo import (
    BY_ITSELF,
    ON_REQUEST,
    WINDOW_TOKENS,
    YOU,
    default_files,
    parts_by_agent,
    read_text_file,
    summary_lines,
    write_space,
)
from mew_agent.parts.demo.story import CompactionCheck


def test_the_demo_reads_the_projects_own_pages_by_default() -> None:
    names = {path.name for path in default_files()}
    assert "compaction.md" in names


def test_next_steps_name_the_tutorial_only_if_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(demo.CLONE)
    assert "  docs/tutorial/getting-started.md " in "\n".join(demo.next_steps("mew"))
    monkeypatch.setattr(demo, "CLONE", tmp_path)
    assert demo.next_steps("mew")[-1].startswith("  mew help all ")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b" \n\n\t", "is empty"),
        (b"caf\xe9", "is not UTF-8 text (at byte 3)"),
        (b"text\x00more", "is not text (a NUL byte at 4)"),
    ],
)
def test_unreadable_file_is_named_with_the_reason(tmp_path: Path, content: bytes, problem: str) -> None:
    file = tmp_path / "input.txt"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_text_file(file)
    assert str(file) in str(caught.value)
    assert problem in str(caught.value)


def test_missing_file_and_folder_are_bad_input(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.txt", tmp_path):
        with pytest.raises(ConfigError, match="expected a text file"):
            read_text_file(path)


def test_demo_writes_a_valid_space_on_the_rehearsal_model(tmp_path: Path) -> None:
    words = write_space(tmp_path, {})
    config = load_space(tmp_path / "space.yaml")
    assert set(config.participants) == {YOU, BY_ITSELF, ON_REQUEST}
    assert config.is_person(YOU)
    assert "rehearsal model" in words


def test_provider_in_the_environment_is_used(tmp_path: Path) -> None:
    words = write_space(tmp_path, {"OPENAI_API_KEY": "sk-test", "OPENAI_MODEL": "some-model"})
    agent = json.loads((tmp_path / "space.yaml").read_text())["participants"][BY_ITSELF]["agent"]
    assert agent == {"model": "some-model", "context_token_limit": WINDOW_TOKENS}
    assert "sk-test" not in (tmp_path / "space.yaml").read_text()
    assert words.startswith("some-model")


def test_agents_read_all_texts_in_different_orders(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"text of {name}")
    texts = parts_by_agent([read_text_file(tmp_path / "a.txt"), read_text_file(tmp_path / "b.txt")])
    assert next(texts[BY_ITSELF]).source == "a.txt"
    assert next(texts[ON_REQUEST]).source == "b.txt"
    assert next(texts[ON_REQUEST]).source == "a.txt"


def test_summary_compares_announced_and_reported() -> None:
    lines = summary_lines(
        [
            CompactionCheck("reader", "threshold", 2165, 1831, 1829),
            CompactionCheck("editor", "requested", 1774, 1362, 1363),
        ],
        9.1,
        width=80,
    )
    text = "\n".join(lines)
    assert "reader      automatically (threshold)   2,165   1,831      1,829      2 (0.1%)" in text
    assert "editor      on request                  1,774   1,362      1,363      1 (0.1%)" in text
    assert "done in 9.1 s" in text


def test_summary_omits_a_table_that_does_not_fit() -> None:
    assert summary_lines([CompactionCheck("reader", "threshold", 2165, 1831, 1829)], 9.1, width=40) == [
        "",
        "done in 9.1 s",
    ]
