"""Write the vocabulary of a GGUF file as a `tokenizer.json`, to count with what a local server counts with.

    python -m benchmarks.vocabulary_from_gguf ggml-vocab-llama-bpe.gguf llama3.json

Needs the packages `gguf` and `tokenizers`; both kinds of Llama vocabulary are understood. Such vocabulary-only files
come with the sources of llama.cpp (`models/ggml-vocab-*.gguf`), each beside texts (`.inp`) and their token ids
(`.out`), which `--check` compares.
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
"""How Llama 3 cuts a text before it merges; a GGUF file only has a name for it."""

SPACE = "\u2581"
CONTROL_TOKEN, BYTE_TOKEN = 3, 6


def tokenizer_of(source: Path) -> Any:
    """The tokenizer in a GGUF file."""
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
            raise SystemExit(f"{source}: vocabulary '{other}' is not one of gpt2, llama")


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
    """Pairs merge in the order of the score of what they make."""
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
    """The texts beside a vocabulary file that come out otherwise than their ids beside it say."""
    texts = source.with_name(f"{source.name}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = source.with_name(f"{source.name}.out").read_text(encoding="utf-8").split("\n")
    wrong = []
    for text, line in zip(texts, lines, strict=False):
        if tokenizer.encode(text, add_special_tokens=False).ids != [int(number) for number in line.split()]:
            wrong.append(text)
    return wrong


def main() -> None:
    """Convert; with `--check`, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--check", action="store_true", help="compare with the .inp and .out beside the source")
    arguments = parser.parse_args()
    tokenizer = tokenizer_of(arguments.source)
    tokenizer.save(str(arguments.target), pretty=False)
    if arguments.check:
        wrong = mismatches(tokenizer, arguments.source)
        print(f"{len(wrong)} texts come out otherwise" + "".join(f"\n  {text!r}" for text in wrong))


if __name__ == "__main__":
    main()
