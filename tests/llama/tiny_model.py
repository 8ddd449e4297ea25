"""A model of a few megabytes that nobody trained: a byte-pair vocabulary made on the spot, weights from a seed.

    python -m tests.llama.tiny_model FOLDER

writes `model.gguf` and the same vocabulary as `tokenizer.json`. What it writes has no sense, but a shape: a token is a
unit vector, attention and feed-forward add nothing, so that the output matrix is a table of what may follow what. By
that it writes random words and ends by itself. The first word of the last message, read by its chat template, makes it
do something else:

`!sing` says one word for ever; `!babble` writes bytes and pieces of words that cut otherwise when they are read again;
`!think` thinks before it answers; `!act` calls one of the tools it is offered.
"""

import json
import math
import random
import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.vocabulary_from_gguf import LLAMA3_PATTERN
from tests.llama.gguf_file import Tensor, Value, encoded
from tests.support.texts import paragraphs

TRAINED_WINDOW_TOKENS: Final = 16384
WIDTH: Final = 768
"""Tokens of the vocabulary, and numbers in the vector of each."""

START, END, ENDLESS, BABBLE, THINK, ACT = "<|im_start|>", "<|im_end|>", "<|sing|>", "<|babble|>", "<|think|>", "<|act|>"
THOUGHT, THOUGHT_OVER, CALL, CALL_OVER = "<think>", "</think>", "<tool_call>", "</tool_call>"
OPENINGS: Final = tuple(f"<|words{place}|>" for place in range(8))
CONTROL: Final = (START, END, ENDLESS, BABBLE, THINK, ACT, *OPENINGS)
MARKS: Final = (THOUGHT, THOUGHT_OVER, CALL, CALL_OVER)
"""Tokens that are also text, so that the server's parsers see them."""

_NORMAL, _CONTROL_KIND, _MARK_KIND = 1, 3, 4
_NEVER: Final = -30.0
_NORM_EPSILON: Final = 1e-6

CHAT_TEMPLATE: Final = """\
{%- if tools %}
  {{- '<|im_start|>system\\nTools:\\n' }}
  {%- for tool in tools %}{{- (tool | tojson) + '\\n' }}{%- endfor %}
  {{- 'Call with <tool_call>\\n{"name": NAME, "arguments": ARGUMENTS}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
  {%- if message.role == 'tool' %}
    {{- '<|im_start|>tool\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
  {%- else %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.reasoning_content %}
      {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
    {%- endif %}
    {%- if message.content %}{{- message.content }}{%- endif %}
    {%- for call in message.tool_calls or [] %}
      {%- if message.content or not loop.first %}{{- '\\n' }}{%- endif %}
      {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
      {%- if call.function.arguments is string %}{{- call.function.arguments }}
      {%- else %}{{- call.function.arguments | tojson }}{%- endif %}
      {{- '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|im_start|>assistant\\n' }}
  {%- set last = messages[-1] %}
  {%- if last.role == 'user' and last.content.startswith('!sing') %}{{- '<|sing|>' }}
  {%- elif last.role == 'user' and last.content.startswith('!babble') %}{{- '<|babble|>' }}
  {%- elif last.role == 'user' and last.content.startswith('!think') %}{{- '<|think|>' }}
  {%- elif last.role == 'user' and last.content.startswith('!act') and tools %}{{- '<|act|>' }}
  {%- else %}{{- '<|words' + ((messages | length) % 8) | string + '|>' }}{%- endif %}
{%- endif %}
"""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Texts of all tokens by number, in the byte-level alphabet, and the pairs that merge, in order."""

    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]

    def kind(self, token: str) -> int:
        return _CONTROL_KIND if token in CONTROL else _MARK_KIND if token in MARKS else _NORMAL


def learnt_from(texts: Iterable[str]) -> Vocabulary:
    """A vocabulary that suits these texts; the same for the same texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _cutter()
    trainer = trainers.BpeTrainer(
        vocab_size=WIDTH - len(CONTROL) - len(MARKS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = (*sorted(model["vocab"], key=model["vocab"].__getitem__), *CONTROL, *MARKS)
    if len(tokens) != WIDTH:
        raise ValueError(f"too little text for a vocabulary of {WIDTH} tokens: {len(tokens)}")
    merges = (pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"])
    return Vocabulary(tokens, tuple((left, right) for left, right in merges))


def tokenizer_json(vocabulary: Vocabulary) -> str:
    """The vocabulary as the file that a tokenizer library reads."""
    from tokenizers import Tokenizer, models

    numbers = {token: at for at, token in enumerate(vocabulary.tokens) if vocabulary.kind(token) == _NORMAL}
    tokenizer: Any = Tokenizer(models.BPE(vocab=numbers, merges=list(vocabulary.merges), ignore_merges=True))
    tokenizer.pre_tokenizer = _cutter()
    tokenizer.add_special_tokens(list(CONTROL))
    tokenizer.add_tokens(list(MARKS))
    return str(tokenizer.to_str())


def gguf(vocabulary: Vocabulary, seed: int = 4) -> bytes:
    """The model file."""
    number = {token: at for at, token in enumerate(vocabulary.tokens)}
    metadata: dict[str, Value] = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.context_length": TRAINED_WINDOW_TOKENS,
        "llama.embedding_length": WIDTH,
        "llama.block_count": 1,
        "llama.feed_forward_length": 32,
        "llama.attention.head_count": WIDTH // 64,
        "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": _NORM_EPSILON,
        "llama.rope.dimension_count": 64,
        "llama.vocab_size": WIDTH,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": vocabulary.tokens,
        "tokenizer.ggml.token_type": [vocabulary.kind(token) for token in vocabulary.tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in vocabulary.merges],
        "tokenizer.ggml.bos_token_id": number[START],
        "tokenizer.ggml.eos_token_id": number[END],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    return encoded(metadata, _tensors(vocabulary, random.Random(seed)))


def _tensors(vocabulary: Vocabulary, chance: random.Random) -> list[Tensor]:
    unit = array("f", bytes(WIDTH * WIDTH * 4))
    unit[:: WIDTH + 1] = array("f", [1.0]) * WIDTH
    one = array("f", [1.0]) * WIDTH

    def nothing(name: str, width: int, rows: int) -> Tensor:
        return Tensor(f"blk.0.{name}.weight", (width, rows), array("f", bytes(width * rows * 4)))

    return [
        Tensor("token_embd.weight", (WIDTH, WIDTH), unit),
        Tensor("output_norm.weight", (WIDTH,), one),
        Tensor("output.weight", (WIDTH, WIDTH), _following(vocabulary, chance)),
        Tensor("blk.0.attn_norm.weight", (WIDTH,), one),
        Tensor("blk.0.ffn_norm.weight", (WIDTH,), one),
        nothing("attn_q", WIDTH, WIDTH),
        nothing("attn_k", WIDTH, 64),
        nothing("attn_v", WIDTH, 64),
        nothing("attn_output", WIDTH, WIDTH),
        nothing("ffn_gate", WIDTH, 32),
        nothing("ffn_up", WIDTH, 32),
        nothing("ffn_down", 32, WIDTH),
    ]


def _following(vocabulary: Vocabulary, chance: random.Random) -> "array[float]":
    """The output matrix: row j, column i is how likely token j follows token i, before the norm's factor."""
    number = {token: at for at, token in enumerate(vocabulary.tokens)}
    plain = [token for token in vocabulary.tokens if vocabulary.kind(token) == _NORMAL]
    words = [number[token] for token in plain if token[0] == "Ġ" and token[2:].isascii() and token[1:].isalpha()]
    sung, said, thought = words[-1], words[:-1:2], words[1:-1:2]
    pieces = [number[token] for token in plain if not set(token) & set("ĠĊĉ<}")]
    after: dict[int, tuple[list[int], int, float]] = {}
    """For each token: what may follow, what ends that, and how probable the end is on average."""
    for openings, content, over, end_share in (
        ((*OPENINGS, THOUGHT_OVER), said, END, 1 / 24),
        ((THOUGHT,), thought, THOUGHT_OVER, 1 / 16),
        ((BABBLE,), pieces, END, 1 / 40),
    ):
        after |= dict.fromkeys((number[token] for token in openings), (content, number[over], 0.0))
        after |= dict.fromkeys(content, (content, number[over], end_share))
    for token, only in ((THINK, THOUGHT), (ACT, CALL), (CALL, "Ċ"), (CALL_OVER, END)):
        after[number[token]] = ([number[only]], number[END], 0.0)
    after |= dict.fromkeys((number[ENDLESS], sung), ([sung], number[END], 0.0))

    scale = math.sqrt(1 / WIDTH + _NORM_EPSILON)
    rows = array("f", [_NEVER * scale]) * (WIDTH * WIDTH)
    # Where a grammar lets a call be closed, it is.
    rows[number[CALL_OVER] * WIDTH : (number[CALL_OVER] + 1) * WIDTH] = array("f", [_NEVER / 2 * scale]) * WIDTH
    for source, (followers, end, end_share) in after.items():
        liking = [chance.gauss(0.0, 1.0) for _ in followers]
        for follower, much in zip(followers, liking, strict=True):
            rows[follower * WIDTH + source] = much * scale
        if end_share:
            # Not the same for all, or the same numbers of chance would end every reply at the same place.
            share, whole = end_share * chance.uniform(0.1, 1.9), sum(map(math.exp, liking))
            rows[end * WIDTH + source] = math.log(whole * share / (1 - share)) * scale
    return rows


def _cutter() -> Any:
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def write(folder: Path, texts: Iterable[str]) -> None:
    """Write `model.gguf` and `tokenizer.json`."""
    vocabulary = learnt_from(texts)
    (folder / "model.gguf").write_bytes(gguf(vocabulary))
    (folder / "tokenizer.json").write_text(tokenizer_json(vocabulary), encoding="utf-8")


def shipped_texts() -> list[str]:
    """What the vocabulary is made from: texts of the project that hardly ever change."""
    licence = Path(__file__).parents[2] / "LICENSE"
    return [licence.read_text(encoding="utf-8"), *paragraphs(400)]


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    write(target, shipped_texts())
