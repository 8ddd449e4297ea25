"""A package of another author adds a type of participant and a command: the one of docs/how-to/plug-ins.md."""

import json
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.interaction.test_docs import DOCS, blocks_of
from tests.support.cli import Outcome, run_program
from tests.support.ports import unused_ports

MOST_LINES = 60
ROOT = DOCS.parent
PARTS = ROOT / "mew_agent" / "parts"


@pytest.fixture
def files() -> dict[str, str]:
    return {block.title: block.code for block in blocks_of(DOCS / "how-to" / "plug-ins.md") if block.title}


@pytest.fixture
def folder(tmp_path: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a space, in an environment where the package is installed as pip installs it."""
    site, folder = tmp_path / "site", tmp_path / "space"
    project = tomllib.loads(files["pyproject.toml"])["project"]
    metadata = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir(parents=True)
    groups = project["entry-points"].items()
    entries = "".join(
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in one.items()) for group, one in groups
    )
    (metadata / "entry_points.txt").write_text(entries)
    for name, code in files.items():
        if name.endswith(".py"):
            (site / name).write_text(code)
    folder.mkdir()
    (folder / "space.yaml").write_text(files["space.yaml"])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(site), os.environ.get("PYTHONPATH", ""))))
    return folder


def mew(folder: Path, *words: str) -> Outcome:
    """Run a real process: a copy has read which plug-ins there are."""
    return run_program((sys.executable, "-m", "mew_agent", *words), folder, os.environ)


def test_the_page_lists_all_tables_with_their_built_in_entries() -> None:
    """Each row has the entries of pyproject.toml; those of templates are folders, and commands are counted."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    page = (DOCS / "how-to" / "plug-ins.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(mew_\w+\.\w+)` \|.*\| (`.*`) \|$", page, re.MULTILINE)
    listed = {group: sorted(re.findall(r"`([^`]+)`", names)) for group, names in rows}
    templates = listed.pop("mew_agent.templates")
    assert templates == sorted(path.name for path in (PARTS / "templates").iterdir() if (path / "space.yaml").exists())
    assert "| `mew_agent.commands` |" in page
    others = groups.keys() - {"mew_agent.templates", "mew_agent.commands"}
    assert listed == {group: sorted(groups[group]) for group in others}


def test_the_plug_in_of_the_documentation_is_short(files: dict[str, str]) -> None:
    code = [line for name in files if name.endswith(".py") for line in files[name].splitlines() if line.strip()]
    assert len(code) <= MOST_LINES


def test_a_plug_in_adds_a_command(folder: Path) -> None:
    assert "metronome  Print the default interval." in mew(folder, "--help").out
    assert (mew(folder, "metronome")).out == "every 60 seconds\n"
    assert (mew(folder, "metronome", "--json")).out == '{"seconds":60}\n'


def test_a_plug_in_adds_a_type_of_participant(folder: Path) -> None:
    (port,) = unused_ports(1)
    started = mew(folder, "up", "--detach", "--json", "--port", str(port))
    try:
        assert json.loads(started.out)["programs"]["beat"] == {"joined": True, "fault": None}, started
        assert "tick" in (mew(folder, "history")).out
        added = mew(folder, "agent", "add", "second", "--metronome", "tock")
        assert added.out == "second: added and joined\n", added
        assert "metronome: {" in (folder / "space.yaml").read_text()
    finally:
        stopped = mew(folder, "down")
    assert stopped.code == 0, stopped


def test_the_settings_of_a_plug_in_are_checked_with_their_place(folder: Path) -> None:
    text = (folder / "space.yaml").read_text()
    (folder / "space.yaml").write_text(text.replace("every_seconds: 30", "every_second: 30"))
    refused = mew(folder, "up", "--detach")
    assert "space.yaml:5:29: unknown key 'every_second' under participants.beat.metronome" in refused.err
    (folder / "space.yaml").write_text(text.replace("every_seconds: 30", "every_seconds: 0.5"))
    warned = mew(folder, "doctor")
    assert warned.code == 0, warned


def test_a_plug_in_adds_an_acp_agent(folder: Path, tmp_path: Path) -> None:
    metadata = tmp_path / "site" / "mew_robot-1.0.dist-info"
    metadata.mkdir()
    (metadata / "entry_points.txt").write_text("[mew_agent.acp_profiles]\nrobot = mew_robot:ROBOT\n")
    (tmp_path / "site" / "mew_robot.py").write_text(
        "from mew_agent.parts.acp.profiles import AcpProfile\n"
        "ROBOT = AcpProfile('robot', ('robot-acp',), install='pip install robot')\n"
    )
    missing = mew(folder, "agent", "add", "helper", "--acp", "robot")
    assert "program 'robot-acp' not found; install it with `pip install robot`" in missing.err


PARROT = """
from contextlib import asynccontextmanager
from mew_agent import ModelIdentity, ModelReply, TextDelta, Usage, Window
from mew_agent.context.policy.definition import CompactRule, Policy
from mew_agent.context.policy.threshold import mark
from mew_agent.model.builtin import BuiltinModel
from mew_agent.tokens.tokenizers import Tokenizer


class Parrot:
    identity = ModelIdentity("parrot", "parrot")

    async def stream(self, request):
        words = request.messages[-1].content.split()
        yield TextDelta("squawk")
        used = Usage(len(words), 1, len(words) + 1)
        yield ModelReply("squawk", (), "stop", used, "parrot")

    async def discover_window(self):
        return Window(1000, "loaded")

    async def count_prompt(self, request):
        return None

    async def aclose(self):
        pass


class ParrotModel(BuiltinModel):
    def serves(self, model, where):
        return model

    def described(self, serves):
        return "the parrot"

    def name_of(self, serves):
        return "parrot"

    def open(self, model, window_tokens):
        return Parrot()

    @asynccontextmanager
    async def serve(self, options):
        raise OSError("it has no server")
        yield


class Words:
    name = "words"

    def count(self, text):
        return len(text.split())


MODEL = ParrotModel()
HALF = CompactRule(phase="after_call", trigger="threshold", target="1/4", when=(mark("used", "ge", "1/2"),))
POLICY = Policy(name="calm", rules=(HALF,))
WORDS = Tokenizer("mew_agent", "space", "a vocabulary", lambda path, model: Words(), ("parrot",), has_vocabulary=True)
"""

ASKS_THE_PARROT = """
from mew_agent import Agent, Space, run


async def main():
    async with Space("jungle") as space:
        agent = await space.add(Agent("polly", model="parrot", base_url="parrot", policy="calm"))
        answer = await space.me.ask_agent("polly", "hello there")
        report = answer.context.report
        print(answer.text, report.model, report.policy, report.compact_at_tokens)
        print(report.next_prompt_basis)


run(main)
"""


def test_a_plug_in_adds_a_model_a_policy_and_a_tokenizer(folder: Path, tmp_path: Path) -> None:
    metadata = tmp_path / "site" / "mew_parrot-1.0.dist-info"
    metadata.mkdir()
    names = {"models": "parrot = mew_parrot:MODEL", "policies": "calm = mew_parrot:POLICY"}
    names["tokenizers"] = "words = mew_parrot:WORDS"
    (metadata / "entry_points.txt").write_text("".join(f"[mew_agent.{group}]\n{one}\n" for group, one in names.items()))
    (tmp_path / "site" / "mew_parrot.py").write_text(PARROT)
    asked = run_program((sys.executable, "-c", ASKS_THE_PARROT), folder, os.environ)
    assert asked.out.splitlines() == ["squawk parrot calm 500", "tokenizer"], asked.err
