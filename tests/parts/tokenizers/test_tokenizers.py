"""Families by name, counters if their extra is installed, and a clear error if not. Nothing is downloaded.

The counters' tests run where the extras are installed and are skipped elsewhere.
"""

import base64
import hashlib
import logging
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from mew_settings.installation import install_command

from mew_agent.config.agent_config import load_agent_config
from mew_agent.errors import ConfigError
from mew_agent.parts.tokenizers.families import MOST_CHARS, encoding_of, mistral_vocabulary
from mew_agent.tokens.tokenizers import (
    TextCounter,
    TokenizerSettings,
    chosen_counter,
    counter_for,
    family_of,
    refuse_unavailable,
)
from tests.support.rehearsal_vocabulary import write_vocabulary

HOSTILE = {
    "nothing": "",
    "marks of special tokens": "<|endoftext|><|eot_id|><|im_start|></s><s>[INST]<unk>",
    "half characters": "\ud800 and \udfff",
    "zero bytes": "\x00" * 50,
    "Chinese": "窗口快满了" * 50,
    "one letter": "a" * 20_000,
    "no-break spaces": "\u00a0" * 2_000,
    "emoji": "👩‍👩‍👧‍👦" * 200,
}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a tokenizer asked for the network")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        pytest.param("Meta-Llama-3.1-8B", "llama3", id="O15 llama-3"),
        pytest.param("codellama-7b", None, id="O15 codellama"),
        pytest.param("Mixtral-8x7B", "mistral", id="O15 mixtral"),
        pytest.param("gpt-oss-20b", "gpt", id="O15 gpt-oss"),
        pytest.param("llama-4", None, id="O15 llama-4"),
        pytest.param("mistral-llama3-merge", "llama3", id="O15 the first match wins"),
        ("llama3.2:1b", "llama3"),
        ("TheBloke/Llama-2-7B-GGUF", "llama2"),
        ("llama2", "llama2"),
        ("mistralai/Mistral-Nemo", "mistral"),
        ("GPT-4o", "gpt"),
        ("llama-2-gpt-mix", "llama2"),
        ("qwen2.5", None),
        ("", None),
    ],
)
def test_the_family_follows_from_the_model_name(name: str, family: str | None) -> None:
    assert family_of(name) == family


@pytest.mark.parametrize(
    ("name", "is_tekken"),
    [
        ("Mixtral-8x7B-Instruct", False),
        ("mistral-7b-v0.3", False),
        ("mistral-nemo", True),
        ("Ministral-8B", True),
        ("mistral-small-3.2", True),
    ],
)
def test_the_oldest_mistral_models_have_the_older_vocabulary(name: str, is_tekken: bool) -> None:
    assert mistral_vocabulary(name).startswith("tekken") == is_tekken


def test_an_unknown_family_has_no_counter_and_needs_no_extra() -> None:
    assert chosen_counter("auto", TokenizerSettings("qwen", Path("/nowhere"))) is None


@pytest.mark.parametrize(
    ("family", "package", "extra"),
    [
        ("gpt", "tiktoken", "tokenizers-gpt"),
        ("mistral", "mistral_common", "tokenizers-mistral"),
        ("llama3", "tokenizers", "tokenizers-llama"),
        ("llama2", "tokenizers", "tokenizers-llama"),
    ],
)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    family: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=f"'{package}' is not installed.*{re.escape(install_command(extra))}"):
        counter_for(family, TokenizerSettings("model", Path(__file__)))


@pytest.mark.parametrize(("family", "package"), [("gpt", "tiktoken"), ("llama3", "tokenizers")])
@pytest.mark.parametrize(
    ("file", "said"), [(None, "none is ever downloaded"), (Path("/nowhere/at.all"), "file not found: /nowhere/at.all")]
)
def test_a_missing_vocabulary_is_an_error_and_never_downloaded(
    family: str, package: str, file: Path | None, said: str
) -> None:
    pytest.importorskip(package)
    with pytest.raises(ConfigError, match=said):
        counter_for(family, TokenizerSettings("model", file))


@pytest.mark.parametrize(
    ("family", "package"), [("gpt", "tiktoken"), ("llama2", "tokenizers"), ("mistral", "mistral_common")]
)
def test_an_invalid_vocabulary_is_named_in_the_error(family: str, package: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    file = tmp_path / "tekken_wrong.json"
    file.write_text("{}")
    with pytest.raises(ConfigError, match=r"tekken_wrong\.json: cannot be used"):
        counter_for(family, TokenizerSettings("model", file))
    assert file.read_text() == "{}"


@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base"])
def test_a_rank_file_becomes_the_librarys_own_encoding(encoding: str, tmp_path: Path) -> None:
    pytest.importorskip("tiktoken")
    merged = [bytes([byte]) for byte in range(256)] + [b"he", b"ll", b"hell", b"hello"]
    lines = [base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(merged)]
    file = tmp_path / "ranks"
    file.write_bytes(b"".join(lines))
    made = encoding_of(file, {hashlib.sha256(file.read_bytes()).hexdigest(): encoding})
    assert made.name == encoding
    assert len(made.encode_ordinary("hello")) == 1
    assert len(made.encode_ordinary("help")) == 3
    with pytest.raises(ValueError, match=f"SHA-256 is not that of {encoding}"):
        encoding_of(Path(__file__), {"0": encoding})


@pytest.fixture
def llama(tmp_path: Path) -> TextCounter:
    """A counter with a small vocabulary: bytes, two merges, a special token, and a limit that must not count."""
    tokenizers: Any = pytest.importorskip("tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*alphabet, "he", "hel"])}
    model = tokenizers.models.BPE(vocab=vocabulary, merges=[("h", "e"), ("he", "l")])
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens(["<|eot_id|>"])
    made.enable_truncation(16)
    made.save(str(tmp_path / "tokenizer.json"))
    counter = counter_for("llama3", TokenizerSettings("llama-3", tmp_path / "tokenizer.json"))
    assert counter is not None
    return counter


def test_a_tokenizer_file_counts_whole_texts_and_takes_marks_for_text(llama: TextCounter) -> None:
    assert llama.name == "tokenizer.json"
    assert llama.count("hel") == 1
    assert llama.count("help") == 2
    assert llama.count("x" * 500) == 500
    assert llama.count("<|eot_id|>") == len("<|eot_id|>")


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_text_breaks_a_llama_counter(llama: TextCounter, text: str) -> None:
    assert llama.count(text) >= (len(text) > 0)


@pytest.fixture(scope="module")
def nemo() -> TextCounter:
    """Its vocabulary takes most of a second to load."""
    pytest.importorskip("mistral_common")
    counter = counter_for("mistral", TokenizerSettings("mistral-nemo"))
    assert counter is not None
    return counter


def test_mistral_vocabularies_come_with_their_extra_and_no_text_breaks_them(nemo: TextCounter) -> None:
    older = counter_for("mistral", TokenizerSettings("mixtral-8x7b"))
    assert older is not None
    assert nemo.name.startswith("tekken")
    assert older.name.endswith(".model.v3")
    assert nemo.count("hello world") == 2
    for counter in (nemo, older):
        counted = {name: counter.count(text) for name, text in HOSTILE.items()}
        assert [name for name, count in counted.items() if count < (len(HOSTILE[name]) > 0)] == []


@pytest.mark.parametrize(
    "text",
    [" " * 500_000, "a" * 250_000, "\n" * 250_000, "The gateway writes a frame. " * 10_000],
    ids=["blanks", "one letter", "line breaks", "prose"],
)
def test_no_length_breaks_a_counter(llama: TextCounter, nemo: TextCounter, text: str) -> None:
    assert llama.count(text) > 0
    assert 0 < nemo.count(text) <= len(text)


def test_counting_prose_in_pieces_changes_nothing(nemo: TextCounter) -> None:
    sentence = " The gateway writes 17 frames (at most) to every socket."
    whole, half = sentence * (2 * MOST_CHARS // len(sentence)), sentence * (MOST_CHARS // len(sentence))
    assert nemo.count(whole) == 2 * nemo.count(half)


# -- which one an agent gets -----------------------------------------------------------------------------------


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.name.startswith("mew")]


def test_a_tokenizer_that_is_off_is_not_loaded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert chosen_counter("off", TokenizerSettings("mistral-nemo", Path("/nowhere"))) is None
    assert chosen_counter("auto", TokenizerSettings("qwen")) is None
    assert said(caplog) == []


def test_the_name_of_a_model_chooses_its_tokenizer(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("mistral_common")
    caplog.set_level(logging.INFO)
    assert chosen_counter("auto", TokenizerSettings("mistral-7b")) is not None  # loads ten times as fast as Nemo's
    expected = "counting tokens with the tokenizer of mistral (mistral_instruct_tokenizer_240323.model.v3)"
    assert said(caplog) == [("INFO", expected)]


@pytest.mark.parametrize(("file", "level"), [(None, "INFO"), (Path("/nowhere/at.all"), "WARNING")])
def test_an_unavailable_counter_is_one_log_line(
    file: Path | None, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("tiktoken")
    caplog.set_level(logging.INFO)
    assert chosen_counter("auto", TokenizerSettings("gpt-4o", file)) is None
    ((reported, line),) = said(caplog)
    assert reported == level
    assert line.startswith("no tokenizer for 'gpt-4o' (tokenizer_file: ")


def test_a_file_for_an_unknown_family_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert chosen_counter("auto", TokenizerSettings("qwen", Path("/some/tokenizer.json"))) is None
    ((level, line),) = said(caplog)
    assert level == "WARNING"
    assert "tokenizer_file /some/tokenizer.json is not used" in line


@pytest.mark.parametrize("refusing", [chosen_counter, refuse_unavailable])
@pytest.mark.parametrize(
    ("wanted", "package"), [("gpt", "tiktoken"), ("llama2", "tokenizers"), ("mistral", "mistral_common")]
)
def test_one_that_was_asked_for_by_name_is_refused(refusing: Any, wanted: Any, package: str) -> None:
    pytest.importorskip(package)
    with pytest.raises(ConfigError, match="file not found: /nowhere"):
        refusing(wanted, TokenizerSettings("a-model", Path("/nowhere")))


def test_a_name_chooses_a_counter_for_a_model_of_another_name(tmp_path: Path) -> None:
    counter = chosen_counter("llama3", TokenizerSettings("qwen", write_vocabulary(tmp_path)))
    assert counter is not None
    assert counter.count("two words") == 2
    refuse_unavailable("llama3", TokenizerSettings("qwen", tmp_path / "tokenizer.json"))


@pytest.mark.parametrize("asking", [chosen_counter, refuse_unavailable])
def test_an_unknown_tokenizer_is_refused_with_those_that_exist(asking: Any) -> None:
    with pytest.raises(ConfigError, match=r"unknown tokenizer 'mistrall' \(did you mean 'mistral'\?\)"):
        asking("mistrall", TokenizerSettings("a-model"))


def test_a_missing_vocabulary_is_refused_with_its_position(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    file = tmp_path / "agent.yaml"
    file.write_text("tokenizer: llama3\ntokenizer_file: missing.json\n")
    with pytest.raises(ConfigError) as caught:
        load_agent_config(flags={"space": "s", "id": "a", "token": "t"}, environ={}, file=file)
    assert str(caught.value).startswith(f"{file}:2:1: file not found: {tmp_path / 'missing.json'}")
