"""The only module that imports `mistral_common`: encodes texts with its packaged vocabularies."""

from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final

from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from mew_agent.tokens.tokenizers.family import MistralVocabulary

PACKAGED: Final[dict[MistralVocabulary, str]] = {
    "tekken": "tekken_240911.json",
    "sentencepiece": "mistral_instruct_tokenizer_240323.model.v3",
}


def packaged_vocabulary(kind: MistralVocabulary) -> Path:
    """Path of the installed package's vocabulary of this kind."""
    return Path(str(files("mistral_common") / "data" / PACKAGED[kind]))


def encoder_of(path: Path) -> Callable[[str], Sequence[int]]:
    """A function that encodes a text with a Tekken `.json` or a SentencePiece model. Raises the package's errors."""
    if path.suffix == ".json":
        tekken = Tekkenizer.from_file(path)
        return lambda text: tekken.encode(text, bos=False, eos=False)
    pieces = SentencePieceTokenizer(path)
    return lambda text: pieces.encode(text, bos=False, eos=False)
