"""The one door to `tokenizers`: a `tokenizer.json` of the user's, as a function from text to a number of tokens."""

from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer


def measure_of(path: Path) -> Callable[[str], int]:
    """Load a `tokenizer.json`. Raises what the package raises."""
    tokenizer = Tokenizer.from_file(str(path))
    # The marks of special tokens inside a text are text, wherever it came from.
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def measure(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    return measure
