"""Text of every kind that agents read, from the project's own files or made from a seed.

Each kind has two halves, one to fit weights and one to judge them: natural kinds (prose, code, Chinese) are split by
file, generated ones by seed.
"""

import ast
import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Literal

Half = Literal["fit", "judge"]

ROOT = Path(__file__).parents[1]
PACKAGES = ("protocol", "spaces", "mew_agent")


@cache
def _files(half: Half) -> tuple[Path, ...]:
    found = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return tuple(found[::2] if half == "fit" else found[1::2])


@cache
def _read(half: Half, suffix: str) -> str:
    match suffix:
        case "code":
            return "\n\n".join(path.read_text(encoding="utf-8") for path in _files(half))
        case "prose":
            documents = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
            documents = documents[::2] if half == "fit" else documents[1::2]
            texts = [path.read_text(encoding="utf-8") for path in documents]
            return "\n\n".join(texts + [text for path in _files(half) for text in _docstrings(path)])
        case "schema":
            schemas = sorted((ROOT / "protocol" / "mew_protocol" / "schema").glob("*.json"))
            return "\n".join(path.read_text(encoding="utf-8") for path in schemas[half == "judge" :: 2])
        case _:
            name = "chinese.txt" if half == "fit" else "chinese_more.txt"
            return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _docstrings(path: Path) -> list[str]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [text for node in nodes if isinstance(node, documented) and (text := ast.get_docstring(node))]


@dataclass
class Writer:
    """Generates texts of any kind; the same half and seed always give the same texts."""

    half: Half
    seed: int
    random: Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = Random(f"{self.half} {self.seed}")

    def write(self, kind: str, chars: int) -> str:
        """A text of exactly this many characters."""
        pieces, have = [], 0
        while have < chars:
            piece = KINDS[kind](self)
            pieces.append(piece)
            have += len(piece)
        return "".join(pieces)[:chars]

    def passage(self, source: str, longest: int = 4000) -> str:
        """A passage of a natural text from the start of a line."""
        text = _read(self.half, source)
        start = text.find("\n", self.random.randrange(len(text))) + 1
        return text[start : start + longest]

    def word(self) -> str:
        """A word of the project's prose."""
        words = _words(self.half)
        return words[self.random.randrange(len(words))]

    def hex(self, chars: int) -> str:
        """This many hexadecimal digits."""
        return f"{self.random.getrandbits(4 * chars):0{chars}x}"

    def record(self) -> dict[str, object]:
        """A JSON record as a tool returns it."""
        random = self.random
        return {
            "id": random.choice([random.randrange(10**6), self.hex(8), f"{self.hex(8)}-{self.hex(4)}"]),
            "name": f"{self.word()}_{self.word()}",
            "path": f"/{self.word()}/{self.word()}/{self.word()}.py",
            "size_bytes": random.randrange(10**7),
            "score": round(random.random(), 4),
            "created_at": self.timestamp(),
            "tags": [self.word() for _ in range(random.randrange(4))],
            "is_open": random.random() < 0.5,
            "owner": {"login": self.word(), "url": f"https://example.org/{self.word()}/{random.randrange(999)}"},
            "description": " ".join(self.word() for _ in range(random.randrange(3, 14))),
            "parent": None,
        }

    def timestamp(self) -> str:
        """A timestamp in one of three formats."""
        random = self.random
        day, clock = f"2026-{random.randrange(1, 13):02}-{random.randrange(1, 29):02}", random.randrange(86_400)
        time = f"{clock // 3600:02}:{clock // 60 % 60:02}:{clock % 60:02}"
        return random.choice([f"{day}T{time}Z", f"{day} {time},{random.randrange(1000):03}", f"{day} {time}"])


@cache
def _words(half: Half) -> tuple[str, ...]:
    return tuple(word for word in _read(half, "prose").split() if word.isalpha() and word.isascii())


def _prose(writer: Writer) -> str:
    return writer.passage("prose")


def _code(writer: Writer) -> str:
    return writer.passage("code")


def _json(writer: Writer) -> str:
    match writer.random.randrange(3):
        case 0:
            return writer.passage("schema", 1500)
        case 1:
            return json.dumps([writer.record() for _ in range(4)], indent=2) + "\n"
        case _:
            return json.dumps([writer.record() for _ in range(6)]) + "\n"


def _logs(writer: Writer) -> str:
    random = writer.random
    shape = random.randrange(3)
    lines = []
    for _ in range(12):
        level = random.choice(["INFO", "INFO", "DEBUG", "WARN", "ERROR"])
        said = " ".join(writer.word() for _ in range(random.randrange(2, 8)))
        address = ".".join(str(random.randrange(256)) for _ in range(4))
        match shape:
            case 0:
                request = f"request_id={writer.hex(16)} took_ms={random.randrange(5000)}"
                lines.append(f"{writer.timestamp()} [{level}] {writer.word()}.{writer.word()}: {said} {request}")
            case 1:
                asked = f"GET /{writer.word()}/{writer.hex(6)} HTTP/1.1"
                lines.append(f'{address} - - [{writer.timestamp()}] "{asked}" 200 {random.randrange(90_000)}')
            case _:
                program = f"{random.random() * 9999:12.6f} {writer.word()}[{random.randrange(32_768)}]"
                lines.append(f"{program}: {said} ({address}:{random.randrange(65_536)})")
    return "\n".join(lines) + "\n"


def _hex(writer: Writer) -> str:
    random = writer.random
    match random.randrange(3):
        case 0:
            return "".join(f"{writer.hex(64)}  {writer.word()}.tar.gz\n" for _ in range(8))
        case 1:
            rows = (" ".join(writer.hex(4) for _ in range(8)) for _ in range(12))
            return "".join(f"{16 * number:08x}: {row}\n" for number, row in enumerate(rows))
        case _:
            return writer.hex(1024) + "\n"


def _base64(writer: Writer) -> str:
    text = base64.b64encode(writer.random.randbytes(900)).decode()
    if writer.random.random() < 0.5:
        return "".join(f"{text[at : at + 76]}\n" for at in range(0, len(text), 76))
    return f"data:image/png;base64,{text}\n"


def _chinese(writer: Writer) -> str:
    sentences = _read(writer.half, "chinese").splitlines()
    end = writer.random.choice(["", "", "\n", "\n\n"])
    return writer.random.choice(sentences) + end


def _table(writer: Writer) -> str:
    random = writer.random
    return "".join(
        f"-rw-r--r--  {random.randrange(9)} {writer.word()[:8]:<8} staff {random.randrange(10**7):>9}"
        f" Nov {random.randrange(1, 29):>2} {random.randrange(24):02}:{random.randrange(60):02} {writer.word()}.py\n"
        for _ in range(10)
    )


def _urls(writer: Writer) -> str:
    signature = base64.urlsafe_b64encode(writer.random.randbytes(48)).decode()
    query = f"X-Date=20261120T{writer.random.randrange(240_000):06}Z&X-Expires=3600&X-Signature={signature}"
    return f"https://{writer.word()}.example.org/{writer.hex(10)}/{writer.word()}?{query}\n"


def _diff(writer: Writer) -> str:
    lines = writer.passage("code", 1600).splitlines()
    marks = writer.random.choices([" ", " ", " ", "+", "-"], k=len(lines))
    body = "\n".join(mark + line for mark, line in zip(marks, lines, strict=True))
    start = writer.random.randrange(400)
    return f"--- a/{writer.word()}.py\n+++ b/{writer.word()}.py\n@@ -{start},9 +{start},11 @@\n{body}\n"


KINDS: dict[str, Callable[[Writer], str]] = {
    "prose": _prose,
    "code": _code,
    "json": _json,
    "logs": _logs,
    "hex": _hex,
    "base64": _base64,
    "chinese": _chinese,
    "table": _table,
    "urls": _urls,
    "diff": _diff,
}
