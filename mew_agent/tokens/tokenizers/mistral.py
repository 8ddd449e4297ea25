"""The one door to `mistral_common`: the vocabularies that it ships, as functions from text to token ids."""

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
    """Where the installed package keeps the vocabulary of this kind."""
    return Path(str(files("mistral_common") / "data" / PACKAGED[kind]))


def encoder_of(path: Path) -> Callable[[str], Sequence[int]]:
    """Load a vocabulary: a Tekken `.json`, or else a SentencePiece model. Raises what the package raises."""
    if path.suffix == ".json":
        tekken = Tekkenizer.from_file(path)
        return lambda text: tekken.encode(text, bos=False, eos=False)
    pieces = SentencePieceTokenizer(path)
    return lambda text: pieces.encode(text, bos=False, eos=False)
