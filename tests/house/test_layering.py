"""Which packages may import which, and what a pure module may not do."""

import ast
import re
import sys
from pathlib import Path

import pytest
from mew_settings.participant_types import participant_types

from tests.house.conftest import PACKAGES, ROOT, Module, walk

ALLOWED_IN_PROTOCOL = {"pydantic", "pydantic_core", "mew_protocol"}

VENDOR_DOORS: dict[str, tuple[str, ...]] = {
    "openai": ("mew_agent/model/openai_client.py",),
    "websockets": ("mew_agent/participant/client.py", "spaces/", "protocol/mew_listener/"),
    "uvicorn": (),
    "h11": ("protocol/mew_listener/",),
    "starlette": (
        "spaces/",
        "mew_agent/parts/rehearsal/",
        "mew_agent/parts/openai_api/",
        "mew_agent/parts/a2a/",
        "mew_agent/parts/shared/http_servers.py",
        "mew_agent/parts/shared/relay.py",
        "protocol/mew_listener/",
    ),
    "yaml": ("protocol/mew_settings/yaml_text.py", "spaces/mew_spaces/config/loading.py"),
    "a2a": ("mew_agent/parts/a2a/",),
    "google": ("mew_agent/parts/a2a/",),
    "acp": ("mew_agent/parts/acp/acp_session.py", "mew_agent/parts/acp/agent_for_editors.py"),
    "httpx2": (
        "mew_agent/client_options.py",
        "mew_agent/cli/remote/http_api.py",
        "mew_agent/gateway_http.py",
        "mew_agent/model/openai_client.py",
        "mew_agent/participant/stored_messages.py",
        "mew_agent/parts/mcp/mcp_session.py",
        "mew_agent/parts/meter/calls.py",
        "mew_agent/parts/shared/relay.py",
        "spaces/mew_spaces/parts/webhook/webhook.py",
    ),
    "urllib.request": (
        "mew_agent/cli/space/agent_sections.py",
    ),  # which proxies the environment names; httpx2 is the client
    "http.client": (),
    "mcp": ("mew_agent/parts/mcp/mcp_session.py", "mew_agent/parts/mcp/offers_server.py"),
    "mcp_types": ("mew_agent/parts/mcp/mcp_session.py", "mew_agent/parts/mcp/offers_server.py"),
    "rich": ("mew_agent/cli/", "mew_agent/parts/terminal/"),
    "typer": ("mew_agent/cli/", "mew_agent/parts/"),
    "pytest": ("mew_agent/parts/testing/",),
    "prometheus_client": ("spaces/mew_spaces/parts/metrics/metrics.py",),
    "opentelemetry": ("mew_agent/parts/tracing/spans.py",),
    "psutil": ("spaces/mew_spaces/launch/processes.py", "mew_agent/parts/shared/child_program.py"),
    "sqlite3": ("mew_agent/context/sqlite_", "spaces/mew_spaces/log/"),
    "nats": ("spaces/mew_spaces/parts/jetstream/",),
    "uvloop": ("spaces/", "mew_agent/cli/", "mew_agent/parts/"),
    "tiktoken": ("mew_agent/parts/tokenizers/",),
    "tiktoken_ext": ("mew_agent/parts/tokenizers/",),
    "mistral_common": ("mew_agent/parts/tokenizers/",),
    "tokenizers": ("mew_agent/parts/tokenizers/",),
    # Their results and usage objects are read by their attributes, so that no version of them is needed.
    **dict.fromkeys(("agents", "anthropic", "autogen_core", "botocore", "crewai"), ()),
    **dict.fromkeys(("langchain", "langchain_core", "langgraph", "ollama", "pydantic_ai"), ()),
}

SHARED = "shared"
"""The folder of parts that the other parts may import."""

CLOCKS = {"datetime.now", "datetime.utcnow", "datetime.today", "date.today"}

IMPURE_IMPORTS = {
    "anyio",
    "asyncio",
    "http",
    "random",
    "secrets",
    "socket",
    "subprocess",
    "threading",
    "time",
    "urllib",
    "uuid",
    "openai",
    "websockets",
    "starlette",
    "uvicorn",
    "yaml",
    "rich",
    "typer",
}


def test_protocol_imports_pydantic_and_nothing_of_ours(modules: list[Module]) -> None:
    for module in modules:
        if module.name.split(".")[0] == "mew_protocol":
            foreign = {name.split(".")[0] for name in module.imports()} - set(sys.stdlib_module_names)
            assert foreign <= ALLOWED_IN_PROTOCOL, f"{module.path} imports {foreign - ALLOWED_IN_PROTOCOL}"


def test_the_listener_imports_nothing_of_ours(modules: list[Module]) -> None:
    for module in modules:
        if module.name.split(".")[0] == "mew_listener":
            ours = {name for name in module.imports() if name.split(".")[0].startswith("mew_")}
            assert all(name.split(".")[0] == "mew_listener" for name in ours), module.path


@pytest.mark.parametrize("package", ["mew_board", "mew_settings"])
def test_shared_packages_import_only_the_protocol(package: str, modules: list[Module]) -> None:
    for module in modules:
        if module.name.split(".")[0] == package:
            ours = {name.split(".")[0] for name in module.imports() if name.startswith("mew_")}
            assert ours <= {package, "mew_protocol"}, module.path


def test_spaces_never_imports_mew_agent(modules: list[Module]) -> None:
    for module in modules:
        if module.name.split(".")[0] == "mew_spaces":
            assert not any(name.split(".")[0] == "mew_agent" for name in module.imports()), module.path


def test_only_the_command_line_imports_both_sides(modules: list[Module]) -> None:
    for module in modules:
        imports_spaces = any(name.split(".")[0] == "mew_spaces" for name in module.imports())
        if module.name.split(".")[0] == "mew_agent" and imports_spaces:
            in_a_command = any(name.startswith("mew_agent.cli.") for name in module.imports())
            assert module.path.parts[1] == "cli" or (module.path.parts[1] == "parts" and in_a_command), module.path


WORDS_OF_ENGLISH = frozenset(
    (
        *("archive", "clean", "local", "metrics", "permissions", "pins", "policies", "questions", "reference"),
        *("sessions", "shared", "templates", "terminal", "testing", "tokenizers", "tokens", "tracing", "integrations"),
    )
)
"""Parts whose name the core uses for an idea of its own: only `part 'NAME'` is about the part."""

NAMED_BY_CORE = {
    "demo": "a command that `mew` without a space points to",
    "doctor": "a command that prints what types of participants find",
    "mcp": "the protocol in which participants call tools of peers",
    "openapi": "a format, and the path of its document",
    "webhook": "the key `attention.webhook` of space.yaml",
}
"""Parts that the core names, and why."""

PART_NAMES = frozenset(path.parent.name for home in PACKAGES for path in (ROOT / home).glob("parts/*/__init__.py"))
ADDED_TYPES = sorted(
    kind.added_by.title for kind in participant_types().values() if ".parts." in type(kind).__module__ and kind.added_by
)
"""The titles of the participant types of parts, which the page and `mew agent add` read from the table."""
_UNUSUAL = sorted({*PART_NAMES, "nats"} - WORDS_OF_ENGLISH - NAMED_BY_CORE.keys())
_ANY_PART = "|".join(sorted(PART_NAMES))
NAMES_OF_PARTS = re.compile(
    rf"(?<![\w/])(?:{'|'.join(_UNUSUAL)})(?![\w/])|\b(?:part [`'\"]|mew_\w+\.parts\.)(?:{_ANY_PART})\b"
    rf"|\b(?:{'|'.join(ADDED_TYPES)})s?\b|\bmcp_url\b",
    re.IGNORECASE,
)

TEXTS = (".py", ".js", ".json", ".yaml", ".md", ".html")
"""Files of the core that people read, or that programs of people run."""

READS_WHAT_PARTS_SEND = (
    *("`relayed_prompt`, from a request that `mew meter` relayed", "set `acp.mode` in space.yaml"),
    "A published MCP server works in its place",
)
"""What the wire says of a report that a part makes, what to do about it, and what users can write in a template."""

ROLE_OF_ARIA = 'role: "meter"'
"""What a screen reader calls a gauge in the page."""


def test_the_core_imports_no_part_and_parts_no_other(modules: list[Module]) -> None:
    found = set()
    for module in modules:
        inside = module.name.split(".")[1:]
        here = inside[1] if inside[:1] == ["parts"] and len(inside) > 1 else None
        for name in module.imports(with_types=True) | module.modules_in_strings():
            target = name.split(".")[2] if re.match(r"(mew_agent|mew_spaces)\.parts\.", name) else here
            if target != here and (here is None or target != SHARED):
                found.add((module.name, target))
    assert not found


OPEN_TO_PARTS = frozenset(
    {
        *("mew_board", "mew_listener", "mew_protocol", "mew_settings"),
        *(f"mew_agent.{name}" for name in ("agent", "config", "context", "model", "participant", "tokens", "tools")),
        *(f"mew_agent.cli.{name}" for name in ("app", "board", "remote", "space")),
        *(f"mew_spaces.{name}" for name in ("config", "gateway", "launch")),
    }
)
"""Packages that every part may import from. Modules in the roots of `mew_agent` and `mew_spaces` are open, too."""

OPEN_TO_ONE = {
    "mew_agent.cli.programs": ("testing",),  # runs a gateway in the process of a test
    "mew_agent.compaction": ("compaction_approval",),  # decides on the plan of a compaction
    "mew_agent.conversation": ("compaction_approval", "integrations"),  # which hold a turn, and write its events
    "mew_spaces.core": ("jetstream",),  # stores what the core decided
    "mew_spaces.log": ("jetstream",),
}
"""Packages that only these parts may import from."""


def closed_imports(module: Module, part: str, packages: set[str]) -> list[str]:
    """Return the imports of a part that are private, or from a package of the core that is closed to it."""
    closed = []
    for name in module.imports(with_types=True):
        words = name.split(".")
        homes = {".".join(words[:count]) for count in range(1, len(words) + 1)}
        is_private = words[0].startswith("mew_") and any(is_private_name(word) for word in words)
        is_open = homes & OPEN_TO_PARTS or any(part in OPEN_TO_ONE.get(home, ()) for home in homes)
        if is_private or (homes & packages and not is_open):
            closed.append(name)
    return closed


def is_private_name(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def test_parts_import_public_names_of_open_packages(modules: list[Module]) -> None:
    core = [module for module in modules if ".parts" not in module.name]
    packages = {module.name for module in core if module.path.name == "__init__.py" and "." in module.name}
    found = {
        module.path.as_posix(): closed
        for module in modules
        if (inside := re.match(r"mew_\w+\.parts\.(\w+)", module.name))
        and (closed := closed_imports(module, inside[1], packages))
    }
    assert not found
    tree = ast.parse(
        "from mew_agent import _version\nimport mew_spaces.core.space_core\nfrom mew_agent.model import usage"
    )
    strange = Module(ROOT, "mew_agent.parts.x.y", tree)
    assert sorted(closed_imports(strange, "x", packages)) == ["mew_agent._version", "mew_spaces.core.space_core"]


def test_a_module_that_a_string_names_counts_as_imported(tmp_path: Path) -> None:
    tree = ast.parse('"""See `mew_agent.parts.acp`."""\nTABLE = {"nats": "mew_spaces.parts.jetstream.opening:open"}\n')
    assert Module(tmp_path, "x", tree).modules_in_strings() == {"mew_spaces.parts.jetstream.opening"}


@pytest.mark.parametrize(
    "line",
    [
        "Run this agent over ACP.",
        'BUILT_IN = "rehearsal"',
        "its disk may be full, or NATS unreachable",
        "The part `tracing` has one.",
        "see `mew_agent.parts.mcp`",
        'label: "MCP server at a URL"',
    ],
)
def test_the_rule_on_names_of_parts_sees_a_name(line: str) -> None:
    assert NAMES_OF_PARTS.search(line)


def test_each_exception_is_the_name_of_a_part() -> None:
    assert WORDS_OF_ENGLISH | NAMED_BY_CORE.keys() <= PART_NAMES


def test_the_core_names_no_part_in_code_help_or_comments() -> None:
    """What a part adds, its table says."""
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*") if file.suffix in TEXTS)
    named = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in files
        if not {"parts", "vendor"} & {*file.relative_to(ROOT).parts}
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if NAMES_OF_PARTS.search(line) and not any(one in line for one in (*READS_WHAT_PARTS_SEND, ROLE_OF_ARIA))
    ]
    assert not named


@pytest.mark.parametrize("vendor", VENDOR_DOORS)
def test_a_vendor_comes_in_by_its_door_only(vendor: str, modules: list[Module]) -> None:
    doors = VENDOR_DOORS[vendor]
    users = [m.path.as_posix() for m in modules if any(f"{name}.".startswith(f"{vendor}.") for name in m.imports())]
    strangers = [path for path in users if not path.startswith(doors)]
    assert not strangers, f"{vendor} is imported in {strangers}"


def test_pure_modules_have_no_clock_no_chance_and_no_waiting(modules: list[Module]) -> None:
    for module in filter(lambda m: m.is_pure, modules):
        tops = {name.split(".")[0] for name in module.imports() - {"http", "http.HTTPStatus"}}
        assert not tops & IMPURE_IMPORTS, f"{module.path} imports {tops & IMPURE_IMPORTS}"
        for node in walk(module.tree):
            assert not isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith), f"{module.path}:{node.lineno}"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                requested = f"{node.value.id}.{node.attr}"
                assert requested not in CLOCKS, f"{module.path}:{node.lineno} reads a clock"


_CONSTANT = {"mew_agent.errors", "mew_protocol", "mew_settings.plugins"}
"""Modules that give the same answers during a run; what is installed does not change."""


def test_pure_modules_build_on_pure_modules(modules: list[Module]) -> None:
    pure = {module.name for module in modules if module.is_pure}
    ours = {module.name for module in modules if module.has_code}
    mixed = {}
    for module in filter(lambda m: m.is_pure, modules):
        impure = {name for name in module.imports() if name in ours} - pure - _CONSTANT
        if impure:
            mixed[module.path.as_posix()] = impure
    assert not mixed


def test_no_signature_shows_the_environment(modules: list[Module]) -> None:
    """A default of `os.environ` would print every secret in `help()` and in editors."""
    for module in modules:
        for node in walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                defaults = [one for one in (*node.args.defaults, *node.args.kw_defaults) if one is not None]
                assert "environ" not in map(ast.unparse, defaults), f"{module.path}:{node.lineno}"
                assert "os.environ" not in map(ast.unparse, defaults), f"{module.path}:{node.lineno}"


def test_the_rules_see_a_violation(tmp_path: Path) -> None:
    """The checks above walk real syntax: a forbidden import inside a function is found too."""
    tree = ast.parse('"""[pure] x."""\ndef f():\n    import time\n    return time.time()\n')
    module = Module(tmp_path, "x", tree)
    assert module.is_pure
    assert "time" in module.imports()
