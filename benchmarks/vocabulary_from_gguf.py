"""Writes the vocabulary of a GGUF file as a `tokenizer.json`, to count tokens as a local server does.

    python -m benchmarks.vocabulary_from_gguf ggml-vocab-llama-bpe.gguf llama3.json

Needs the packages `gguf` and `tokenizers`; supports both kinds of Llama vocabulary. The sources of llama.cpp contain
vocabulary-only files (`models/ggml-vocab-*.gguf`) with texts (`.inp`) and their token ids (`.out`), which `--check`
compares.
"""

import argparse
from pathlib import Path
from typing import Any

LLAMA3_PATTERN = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""The pattern by which Llama 3 splits a text before merging; a GGUF file contains only its name."""

SPACE = "\u2581"
CONTROL_TOKEN = 3


def tokenizer_of(source: Path) -> Any:
    """Build the tokenizer of a GGUF file."""
    from gguf import GGUFReader

    reader = GGUFReader(source)
    tokens = list(reader.fields["tokenizer.ggml.tokens"].contents())
    kinds = list(reader.fields["tokenizer.ggml.token_type"].contents())
    match reader.fields["tokenizer.ggml.model"].contents():
        case "gpt2":
            merges = [tuple(pair.split(" ")) for pair in reader.fields["tokenizer.ggml.merges"].contents()]
            return _byte_level(tokens, kinds, merges)
        case "llama":
            return _sentencepiece(tokens, list(reader.fields["tokenizer.ggml.scores"].contents()))
        case other:
            raise SystemExit(f"{source}: unknown vocabulary '{other}' (expected gpt2 or llama)")


def _byte_level(tokens: list[str], kinds: list[int], merges: list[tuple[str, str]]) -> Any:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    vocabulary = {token: number for number, token in enumerate(tokens) if kinds[number] != CONTROL_TOKEN}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


def _sentencepiece(tokens: list[str], scores: list[float]) -> Any:
    """A SentencePiece tokenizer: pairs merge in the order of the scores of their results."""
    from tokenizers import Tokenizer, models, normalizers

    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = []
    for piece, number in vocabulary.items():
        cuts = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
        merges += [
            (-scores[number], vocabulary[left], vocabulary[right], left, right)
            for left, right in cuts
            if left in vocabulary and right in vocabulary
        ]
    ordered = [(left, right) for *_, left, right in sorted(merges)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=ordered, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    return tokenizer


def mismatches(tokenizer: Any, source: Path) -> list[str]:
    """The texts of the `.inp` file whose token ids differ from those in the `.out` file."""
    texts = source.with_name(f"{source.name}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = source.with_name(f"{source.name}.out").read_text(encoding="utf-8").split("\n")
    wrong = []
    for text, line in zip(texts, lines, strict=False):
        if tokenizer.encode(text, add_special_tokens=False).ids != [int(number) for number in line.split()]:
            wrong.append(text)
    return wrong


def main() -> None:
    """Convert the file; with `--check`, compare the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--check", action="store_true", help="compare with the .inp and .out files of the source")
    arguments = parser.parse_args()
    tokenizer = tokenizer_of(arguments.source)
    tokenizer.save(str(arguments.target), pretty=False)
    if arguments.check:
        wrong = mismatches(tokenizer, arguments.source)
        print(f"{len(wrong)} texts differ" + "".join(f"\n  {text!r}" for text in wrong))


if __name__ == "__main__":
    main()
