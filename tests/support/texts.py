"""Paragraphs of prose, code, JSON and log lines, the same in every run."""

import json
import random

_SAID = (
    "the gateway keeps a last status for every participant and late joiners read it with its age when agents compact"
    " their history because windows are nearly full so nobody guesses how large a context has become while tools"
    " answer questions about files, tokens, windows, requests, envelopes, capabilities, streams, summaries and turns"
)
_WORDS = _SAID.split()


def paragraphs(number: int = 40, seed: int = 7) -> list[str]:
    """So many texts of 80 to 1,500 characters, of all kinds in turn."""
    rng = random.Random(seed)
    return [(_prose, _code, _json, _log)[place % 4](rng) for place in range(number)]


def _prose(rng: random.Random) -> str:
    sentences = [" ".join(rng.choices(_WORDS, k=rng.randint(6, 18))) for _ in range(rng.randint(2, 9))]
    return " ".join(f"{sentence.capitalize()}." for sentence in sentences)


def _code(rng: random.Random) -> str:
    names = ["plan", "record", "decide", "apply", "cut"]
    return "\n".join(
        f"def {rng.choice(names)}_{rng.randint(1, 99)}(items, prices):\n"
        f"    return [item for item in items if prices[item.seq] > {rng.randint(1, 4096)}]"
        for _ in range(rng.randint(1, 6))
    )


def _json(rng: random.Random) -> str:
    rows = [{"id": rng.getrandbits(64), "name": rng.choice(_WORDS), "tokens": rng.randint(0, 10**6)} for _ in range(9)]
    return json.dumps(rows[: rng.randint(2, 9)], indent=rng.choice([None, 2]))


def _log(rng: random.Random) -> str:
    return "\n".join(
        f"2026-01-{rng.randint(10, 31)}T{rng.randint(10, 23)}:00:00Z INFO gateway: {' '.join(rng.choices(_WORDS, k=7))}"
        for _ in range(rng.randint(1, 10))
    )
