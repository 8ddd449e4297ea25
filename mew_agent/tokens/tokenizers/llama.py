"""The only module that imports `tokenizers`: counts tokens with the user's `tokenizer.json`."""

from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer


def measure_of(path: Path) -> Callable[[str], int]:
    """A function that counts the tokens of a text. Raises the package's own errors."""
    tokenizer = Tokenizer.from_file(str(path))
    # Marks of special tokens within a text are text.
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def measure(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    return measure
