"""The counter that reads a model's `tokenizer.json` against the server that has the same vocabulary."""

from pathlib import Path

import pytest

from benchmarks.corpus import KINDS, Writer
from mew_agent.tokens.tokenizers import TextCounter, TokenizerSettings, counter_for
from tests.llama.server import LlamaServer

ODD = {
    "nothing": "",
    "white space": " \t  \n\n\r\n   \n x  y\n",
    "marks of special tokens": "<|im_start|>user\n<think></tool_call><|endoftext|>",
    "control characters": "".join(map(chr, range(1, 32))),
    "many scripts": "ünïcödé Ελλάδα Россия עברית हिन्दी ไทย 中文 日本語 한국어 🚰🧑‍🚀",
    "a long word": "a" * 1000,
}


@pytest.fixture(scope="module")
def counter(files: Path) -> TextCounter:
    made = counter_for("llama3", TokenizerSettings("llama-3-tiny", files / "tokenizer.json"))
    assert made is not None
    return made


@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
def test_odd_texts_count_as_the_server_counts_them(server: LlamaServer, counter: TextCounter, text: str) -> None:
    assert counter.count(text) == len(server.tokenize(text))


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_text_counts_as_the_server_counts_it(server: LlamaServer, counter: TextCounter, kind: str) -> None:
    for seed in range(4):
        text = Writer("judge", seed).write(kind, 5000)
        assert counter.count(text) == len(server.tokenize(text))
