"""The documentation is executable: every fenced block of every page is run, validated, or says why not.

A page is a script. A block with a title is a file that the reader saves; an `sh` block holds commands that the reader
pastes in the folder of these files. A comment before a block changes that:

- `<!-- not run: REASON -->`: the block is not run.
- `<!-- second terminal -->`: its commands keep running while the page goes on.
- `<!-- exit code N -->`: its last command ends with N.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, get_args

import pytest
import yaml
from mew_protocol import errors
from mew_protocol.context_report import ContextReport
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.all_kinds import PAYLOADS
from mew_protocol.payloads.attention_items import AttentionItem
from mew_protocol.payloads.participant import Status
from mew_protocol.status_word import WORDS
from mew_spaces.config.loading import parse_space
from mew_spaces.config.settings import SpaceConfig
from mew_spaces.gateway.http import OPERATIONS

from mew_agent.config.agent_config import build_agent_config, file_source, load_policy
from mew_agent.errors import NoAnswer
from mew_agent.parts.simple_agents.fulfiller_policy import FulfillerPolicy
from tests.acp_agents.__main__ import AGENTS
from tests.interaction.test_failures import TABLE
from tests.support.cli import Outcome, mew_in, run_program
from tests.support.ports import unused_ports
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.warm_start import MEW, PYTHON

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="`mew up` needs a POSIX system")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TEMPLATES = ROOT / "mew_agent" / "templates"
GENERATED = {DOCS / "reference" / f"{name}.md" for name in ("agent-config", "cli", "python", "space-yaml")}
"""Pages that `make docs` writes; their text is tested where it comes from."""

WRITTEN = [page for page in DOCS.rglob("*.md") if page not in GENERATED]
PAGES = sorted([*WRITTEN, ROOT / "README.md", ROOT / "CONTRIBUTING.md", *TEMPLATES.glob("*/README.md")])
PORTS = ("8080", "8190", "8191", "8193", "7100")
"""Ports that pages name; each test replaces them by free ones."""

BLOCK = re.compile(
    r"(?:^<!-- (?P<note>.*?) -->\n)?^(?P<indent> *)```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?.*\n"
    r"(?P<code>(?:.*\n)*?)(?P=indent)```$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    title: str
    code: str
    note: str
    is_example: bool
    """Whether it shows a file of docs/examples, whose tests are in test_examples.py."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_skipped(self) -> bool:
        return "not run: " in self.note

    @property
    def commands(self) -> list[str]:
        """The commands of an `sh` block: a line each, with those that end in a backslash continued."""
        if self.language != "sh":
            return []
        return re.sub(r"\\\n\s*", "", self.code).splitlines()


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        indent = match["indent"]
        code = "".join(line.removeprefix(indent) for line in match["code"].splitlines(keepends=True))
        if include := re.fullmatch(r'--8<-- "([\w.]+)"\n', code):
            code = (DOCS / "examples" / include[1]).read_text(encoding="utf-8")
        line = text.count("\n", 0, match.start()) + 1
        is_example = include is not None
        found.append(Block(page, line, match["language"], match["title"] or "", code, match["note"] or "", is_example))
    return found


ALL = [block for page in PAGES for block in blocks_of(page)]
SCRIPTS = [page for page in PAGES if any(block.commands and not block.is_skipped for block in blocks_of(page))]


def test_each_fence_is_parsed() -> None:
    fences = sum(len(re.findall(r"^ *```", page.read_text(encoding="utf-8"), re.MULTILINE)) for page in PAGES)
    assert fences == 2 * len(ALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_block_is_run_or_validated_or_gives_a_reason(page: Path, tmp_path: Path) -> None:
    for block in blocks_of(page):
        print(block)  # which block a failure is about
        assert_used(block, tmp_path)


def assert_used(block: Block, tmp_path: Path) -> None:
    """A block is run, validated or output, or says why it is none of these."""
    match block.language:
        case "text":
            pass  # output, shown for the reader
        case "sh":
            assert block.commands
            assert not any(command.startswith("$ ") for command in block.commands), "a prompt cannot be pasted"
        case "yaml":
            assert accepted_as(block, tmp_path)
        case "json":
            for value in json_values(block.code):
                if isinstance(value, dict) and "kind" in value:
                    Envelope.model_validate({"protocol": "mew/v0.4", "id": "1", "ts": "", "from": "a", **value})
                    model = PAYLOADS.get(value["kind"])
                    if model is not None and "*" not in json.dumps(value):  # else a capability pattern
                        model.model_validate(value["payload"])
        case "python":
            compile(block.code, str(block), "exec")
            others = [other for other in blocks_of(block.page) if other.language in ("sh", "yaml")]
            name = "pytest" if block.title.endswith("conftest.py") else block.title  # pytest finds it on its own
            is_run = block.title and any(name in other.code for other in others)
            assert is_run or block.is_example or block.is_skipped, "give it a title and run it, or say why not"
        case "js":
            assert block.is_example  # test_own_engines.py runs it
        case _:
            assert block.is_skipped, f"a block of language '{block.language}' needs a reason"


def accepted_as(block: Block, folder: Path) -> str:
    """What a YAML block is: a space, an agent's configuration, a policy or the rules of a fulfiller."""
    value = yaml.safe_load(block.code)
    file = folder / "block.yaml"
    file.write_text(block.code, encoding="utf-8")
    if "space" in value or set(value) <= set(SpaceConfig.model_fields):
        whole = block.code if "space" in value else "space: {id: fragment}\n" + block.code
        parse_space(whole, path=file)
        return "space"
    if set(value) & {"allow", "deny"}:
        FulfillerPolicy.model_validate(value)
        return "rules"
    if set(value) & {"rules", "based_on"}:
        load_policy(str(file))
        return "policy"
    given = file_source(file)
    build_agent_config([given], environ={"MEW_SPACE": "s", "MEW_TOKEN": "t", "MEW_PARTICIPANT_ID": "i"})
    return "agent"


def json_values(text: str) -> list[Any]:
    """The values of JSON, or of JSON Lines."""
    try:
        return [json.loads(text)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


EXPECTED = {
    "how-to/approve.md": [
        ("mew proposals", r"coder proposes calculator/add,.* ada may approve"),
        ("mew chat coder 'call calculator__add", r"\b5\b"),
        ("mew chat coder 'call calculator__evaluate", r"'keeper' rejected .*only sums and products"),
    ],
    "how-to/chat-clients.md": [
        ("curl -s -H", r'"id":"coder"'),
        ("curl -sN", r"(?s)rehearsal.*data: \[DONE\]\n\n$"),
        ("python ask.py", r"(?m)^prompt: \d+$"),
        ("python ask.py", r"(?m)^context: \d+ of 8192 reported$"),
    ],
    "how-to/launch.md": [
        ("python team.py", r"(?s)planner: .*coder: .*critic: .* tokens \(reported\)"),
        ("python tools.py", r"^3\n$"),
        ("python controls.py", r"(?m)^0 messages$"),
        ("python open_space.py", r"(?m)^http://127.0.0.1:\d+/dashboard$"),
    ],
    "how-to/mcp.md": [("mew up", r"clock: joined"), ("mew chat coder", r"UTC")],
    "how-to/meter.md": [("mew status", r"opencode .* provisional ")],
    "how-to/participants.md": [("mew run who.py", r"^I am ada$"), ("mew run env", r"MEW_TOKEN=")],
    "how-to/policies.md": [("mew context simulate --policy early.yaml", r"compact to 80,000")],
    "how-to/python.md": [
        ("mew chat shouter", r"HELLO THERE"),
        ("mew run own_context.py", r"^1,500 of 128,000 tokens \(reported\)\n$"),
    ],
    "how-to/teams.md": [
        ("python report.py", r"(?s)researcher: .* \(reported\)\nwriter: .*reviewer: "),
        ("mew chat lead", r"ask_writer answered: .*Describe a lighthouse"),
        ("mew history", r"(?s)lead to writer: Describe a lighthouse\..*writer to lead: "),
    ],
    "how-to/testing.md": [("python -m pytest", r"(?s)3 passed.*1 passed")],
    "how-to/tools.md": [("mew chat coder", r"\b3\b"), ("mew chat dice", r"\b([1-9]|1\d|20)\b")],
    "tutorial/getting-started.md": [("mew status", r"(?s)reported.*server counted.*reported")],
}
"""What the output of a page's commands must match; the outputs of equal commands are joined."""

KEPT_NOWHERE = {"meter.md": (b"a key of the model server", b"Is snow white")}
"""What a page's programs send, and the state folder of its space must not hold."""

QUOTES_OUTPUT = {"getting-started.md", "README.md"}
"""Pages whose text blocks are what their commands print, except for figures that random ids change a little."""


UP, DOWN = "mew up --detach", "mew down"


def on_one_space(pages: list[Path]) -> list[list[Path]]:
    """Pages that start the same space, together; each other page by itself."""
    together: dict[str, list[Path]] = {}
    for page in pages:
        blocks = blocks_of(page)
        spaces = [yaml.safe_load(block.code) for block in blocks if block.title == "space.yaml"]
        starts = any(UP in block.commands for block in blocks if not block.is_skipped)
        together.setdefault(json.dumps(spaces) if spaces and starts else str(page), []).append(page)
    return list(together.values())


def names_of(pages: list[Path]) -> str:
    return " ".join(str(page.relative_to(ROOT)) for page in pages)


@pytest.mark.parametrize("pages", on_one_space(SCRIPTS), ids=names_of)
def test_the_commands_of_a_page_run_from_first_to_last(pages: list[Path], reader: "Reader") -> None:
    """What pages have in common is run once: the start of their space by the first one, its end by the last one."""
    for page in pages:
        reader.remove_files()
        already_run = [UP] if page != pages[0] else []
        comes_later = [DOWN] if page != pages[-1] else []
        run_page(page, reader, [*already_run, *comes_later])


def run_page(page: Path, reader: "Reader", without: list[str]) -> None:
    """Run the commands of a page, without some, and check what they print."""
    shown: dict[str, str] = {}
    with ExitStack() as background:
        for block in blocks_of(page):
            if block.is_skipped:
                continue
            if block.title:
                reader.save(block)
            for command in block.commands:
                if command in without:
                    continue
                if block.note == "second terminal":
                    background.enter_context(reader.keeps_running(command))
                    continue
                done = reader.run(command)
                shown[command] = shown.get(command, "") + done.out
                is_last = command == block.commands[-1]
                wanted = int(block.note.removeprefix("exit code ")) if "exit code" in block.note and is_last else 0
                assert done.code == wanted, f"{block}\n$ {command}\n{done.out}{done.err}"
    if page.name in QUOTES_OUTPUT:
        printed = [line for text in shown.values() for line in text.splitlines()]
        blocks = [block.code for block in blocks_of(page) if block.language == "text" and not block.title]
        quoted = [line for text in blocks for line in text.splitlines()]
        assert [line for line in quoted if not any(is_same_output(line, other) for other in printed)] == []
    for beginning, pattern in EXPECTED.get(str(page.relative_to(DOCS)) if page.is_relative_to(DOCS) else page.name, []):
        output = "".join(text for command, text in shown.items() if command.startswith(beginning))
        assert re.search(pattern, output), f"{beginning}: {output}"
    if page.name in KEPT_NOWHERE:
        kept = [path.read_bytes() for path in (reader.folder / ".mew").rglob("*") if path.is_file()]
        assert any(b"provisional" in content for content in kept)
        assert not any(text in content for text in KEPT_NOWHERE[page.name] for content in kept)


def is_same_output(line: str, other: str) -> bool:
    """Whether two lines differ in figures at most, and there by a tenth or 5: a summary cites ids, which are random."""
    figures, others = (
        [int(figure.replace(",", "")) for figure in re.findall(r"\d[\d,]*", text)] for text in (line, other)
    )
    words, other_words = (re.sub(r"[\d,.%█▒░]+|\s+", " ", text).split() for text in (line, other))
    if words != other_words or len(figures) != len(others):
        return False
    return all(abs(one - two) <= max(5, one // 10) for one, two in zip(figures, others, strict=True))


def command_words(command: str) -> list[str]:
    """The words of a command; none if a shell has to read it."""
    read_by_shell = re.sub(r"'[^']*'|\"[^\"]*\"", lambda quoted: re.sub(r"^'.*|[*?~]", "", quoted[0]), command)
    if re.search(r"[$`*?~\\\n]", read_by_shell):
        return []
    parts = shlex.shlex(command, posix=True, punctuation_chars=True)
    parts.whitespace_split, parts.commenters = True, ""
    words = list(parts)
    return [] if any(re.fullmatch(r"[();<>|&]+", word) for word in words) else words


def warm_command(words: list[str]) -> tuple[str, ...]:
    """The command of a process that needs not import `mew`; empty for other programs."""
    match words:
        case ["mew", *arguments]:
            return (*MEW, *arguments)
        case ["python", file, *arguments] if file.endswith(".py"):
            return (PYTHON, file, *arguments)
        case _:
            return ()


RUN_IN_THE_TEST = re.compile(
    r"mew (agent add|chat|clear|compact|context|down|fit|grant|history|pause|pin|proposals|restart \w+|resume|revoke"
    r"|shutdown|status|token|tools|up --port \d+ --detach)\b"
)
"""Commands that run in the process of the tests, where everything is imported: each process of `mew` imports for 0.3 s.
Real processes of them are in test_cli_processes.py."""


class Reader:
    """A reader of a page: a folder, a shell with our `mew` first on its PATH, and free ports."""

    def __init__(self, folder: Path, ports: dict[str, int]) -> None:
        self.folder = folder
        self._ports = ports
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("MEW_", "OPENAI_", "COLUMNS"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
        # Output of programs is read as it comes; the key is the one that the pages show.
        self._environment = {
            **kept,
            "PATH": path,
            "PYTHONUNBUFFERED": "1",
            "MEW_SERVE_API_KEY": "choose-a-key",
            "PYTEST_ADDOPTS": "-p no:xdist -p no:hypothesispytest",  # a reader has neither; each loads for 0.1 s
        }

    def save(self, block: Block) -> None:
        """Save a titled block as its file."""
        path = self.folder / block.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._with_own_ports(block.code), encoding="utf-8")

    def remove_files(self) -> None:
        """Remove what is not the space's own, so that no page uses a file of another one."""
        for path in self.folder.iterdir():
            if path.is_file() and path.name != "space.yaml":
                path.unlink()

    def run(self, command: str) -> Outcome:
        """Type a command and wait for its end."""
        command = self._with_own_ports(command)
        words = command_words(command)
        if RUN_IN_THE_TEST.match(command) and words:
            done = mew_in(self.folder, *words[1:], environment=self._environment)
        elif program := warm_command(words):
            done = run_program(program, self.folder, self._environment)
        else:
            done = run_program(("bash", "-c", command), self.folder, self._environment)
        print(f"$ {command}\n{done.out}{done.err}")
        return done

    @contextmanager
    def keeps_running(self, command: str) -> Iterator[None]:
        """A command in a second terminal, from its first line of output until Ctrl-C."""
        print(f"$ {command}  # second terminal")
        command = self._with_own_ports(command)
        with subprocess.Popen(
            warm_command(command_words(command)) or ("bash", "-c", f"exec {command}"),
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as program:
            assert program.stdout is not None
            try:
                first = program.stdout.readline()
                assert first, f"$ {command}: ended without output"
                yield
            finally:
                program.send_signal(signal.SIGINT)
                try:
                    rest, _ = program.communicate(timeout=PATIENCE_SECONDS)
                finally:
                    program.kill()
                print(f"# second terminal: {command}\n{first}{rest}")
        assert "Traceback" not in rest

    def _with_own_ports(self, text: str) -> str:
        text = re.sub(r"^mew up(?!.*--port)", f"mew up --port {self._ports['8080']}", text)
        for named, own in self._ports.items():
            text = re.sub(rf"\b{named}\b", str(own), text)
        return text


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    one = Reader(tmp_path, dict(zip(PORTS, unused_ports(len(PORTS)), strict=True)))
    try:
        yield one
    finally:
        if (tmp_path / "space.yaml").exists() or (tmp_path / ".mew").exists():
            one.run("mew down")


def test_the_troubleshooting_page_names_the_failures_that_are_tested() -> None:
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    table = page[page.index("## When something fails during a turn") :]
    rows = re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
    assert rows[1:] == [row.name for row in TABLE]


GENERATED = {DOCS / "reference" / name for name in ("agent-config.md", "cli.md", "python.md", "space-yaml.md")}
"""Pages that `make docs` writes."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_links_to_files_that_exist(page: Path) -> None:
    text = re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"))
    folder = DOCS / "reference" if page.parent == DOCS / "generator" else page.parent  # where `make docs` writes it
    links = [(folder / link).resolve() for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)]
    assert [link for link in links if link not in GENERATED and not link.exists()] == []


def test_every_configuration_key_is_described() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS / "generator")
        import config_pages
    assert config_pages.undescribed() == []


def test_every_name_on_the_architecture_page_exists() -> None:
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    names = re.findall(r"`(mew_(?:agent|protocol|spaces)\.[\w.]+)`", page)
    assert len(names) > 30
    for name in names:
        assert resolve_name(name) is not None
    paths = re.findall(r"`((?:mew_agent|protocol|spaces|docs|tests)/[\w/.]*)`", page)
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_architecture_page_lists_every_package() -> None:
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`[\w/`, ]+`) \|", page, re.MULTILINE)
    named = {name.removeprefix("parts/") for cell in cells for name in re.findall(r"`([\w/]+)`", cell)}
    assert len(named) > 30
    core = (ROOT / "mew_agent", ROOT / "spaces" / "mew_spaces")
    for folder in (*core, *(one / "parts" for one in core)):
        packages = {
            path.name for path in folder.iterdir() if (path / "__init__.py").exists() or (path / "app.js").exists()
        }
        assert packages - named - {"parts"} == set()


def test_the_reference_names_every_code_kind_key_and_route() -> None:
    wire, report, http = (
        (DOCS / "reference" / f"{name}.md").read_text(encoding="utf-8") for name in ("wire", "context-report", "http")
    )
    codes = {value for name, value in vars(errors).items() if name.isupper() and isinstance(value, str)}
    assert {code for code in codes if f"`{code}`" not in wire} == set()
    kinds = [text.replace("*", ".*") for text in re.findall(r"`([a-z]+(?:/[a-z*-]+)?)`", wire)]
    assert [kind for kind in PAYLOADS if not any(re.fullmatch(pattern, kind) for pattern in kinds)] == []
    keys = (*ContextReport.model_fields, *Status.model_fields)
    assert [key for key in keys if f"`{key}`" not in report] == []
    offered = {f"{one.method} {one.path}" for one in OPERATIONS}
    named = set(re.findall(r"`((?:GET|POST) /[^?`]*)", http))
    unnamed = {re.sub(r"{\w+}", "{}", route) for route in offered}
    assert unnamed == {re.sub(r"{\w+}", "{}", route) for route in named} - {"GET /dashboard"}


def test_the_meter_page_names_the_tested_version_of_each_agent() -> None:
    page = (DOCS / "how-to" / "meter.md").read_text(encoding="utf-8")
    rows = {name.lower(): version for name, version in re.findall(r"^\| (\w+) (\d+\.\d+\.\d+)", page, re.MULTILINE)}
    assert rows == {name: one.package.rpartition("@")[2] for name, one in AGENTS.items()}


def test_the_page_on_chat_clients_names_every_code_of_a_missing_answer() -> None:
    page = (DOCS / "how-to" / "chat-clients.md").read_text(encoding="utf-8")
    codes = re.findall(r"`(\w+)`", NoAnswer.__doc__ or "")[1:]
    assert len(codes) > 5
    assert [code for code in codes if f"`{code}`" not in page] == []


def test_the_page_on_errors_names_every_status() -> None:
    page = (DOCS / "reference" / "errors.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_]+)", "".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE))))
    assert set(WORDS) - named == set()


def test_the_page_on_http_names_the_status_of_every_declared_error() -> None:
    page = (DOCS / "reference" / "http.md").read_text(encoding="utf-8")
    named = set(map(int, re.findall(r"^\| (\d{3}) \|", page, re.MULTILINE)))
    assert {status for one in OPERATIONS for status in one.errors} - named == set()


def test_the_page_on_http_names_every_kind_that_needs_a_person() -> None:
    page = (DOCS / "reference" / "http.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `(\w+)` \| (?:blocking|warning|notice)", page, re.MULTILINE)
    assert sorted(named) == sorted(get_args(AttentionItem.model_fields["kind"].annotation))
