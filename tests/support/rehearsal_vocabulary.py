"""The rehearsal model's tokenizer as a `tokenizer.json`, so that an agent counts its tokens as it would a model's."""

from pathlib import Path
from typing import Any

import pytest

from mew_agent.parts.rehearsal import tokenizer


def write_vocabulary(folder: Path) -> Path:
    """Write it into a folder; skips the test where the extra for such files is not installed."""
    tokenizers: Any = pytest.importorskip("tokenizers")
    # Every piece of a text is one token, and all of them are unknown: only their number is asked for.
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab={"piece": 0}, unk_token="piece"))
    pattern = tokenizers.Regex(f"(?xm){tokenizer._TOKEN.pattern}")
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split(pattern, behavior="isolated")
    path = folder / "tokenizer.json"
    made.save(str(path))
    return path
