"""`mew init`: what it creates, keeps and refuses."""

import json
import re
from pathlib import Path

import pytest
from mew_spaces.config.loading import load_space

from tests.mew_agent.cli.remote.test_identity import running_space
from tests.support.cli import mew


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "home"
    place.mkdir()
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setenv("LOGNAME", "maria")
    return place


async def test_init_creates_folders_agents_and_gitignore(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.pyc\n.mew/logs/")
    outcome = await mew("init", "coder-agent", "--name", "play", "--model", "gpt-x", "--description", "for fun")
    assert outcome.code == 0
    assert outcome.out.startswith("created 'play' in space.yaml from the template 'coder-agent'\n")
    state = tmp_path / ".mew"
    space = load_space(tmp_path / "space.yaml")
    assert (space.space.id, space.space.description) == ("play", "for fun")
    coder = space.participants["coder"].section("agent")
    assert coder is not None
    assert coder.model == "gpt-x"
    assert (state / "agents" / "files.py").is_file()
    assert not (state / "template.json").exists()
    assert {path.name for path in state.iterdir() if path.is_dir()} == {"agents", "logs", "fifos", "tokens"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (state, *state.iterdir()) if path.is_dir())
    ignored = (tmp_path / ".gitignore").read_text().splitlines()
    assert ignored[:2] == ["*.pyc", ".mew/logs/"]
    assert ".mew/tokens/" in ignored
    assert ignored.count(".mew/logs/") == 1


async def test_key_is_never_written_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    outcome = await mew("init")
    assert "  API key of the provider: read from OPENAI_API_KEY when the space starts\n" in outcome.out
    written = "".join(path.read_text() for path in (tmp_path / ".mew").rglob("*") if path.is_file())
    assert "sk-very-secret" not in written + outcome.out + (tmp_path / "space.yaml").read_text()
    assert "coder" in load_space(tmp_path / "space.yaml").participants


@pytest.mark.parametrize(
    ("user", "person"), [("maria", "maria"), ("coder", "human"), ("no", "human"), ("Anna Maria", "human")]
)
async def test_person_is_called_by_the_users_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str, person: str
) -> None:
    monkeypatch.setenv("LOGNAME", user)
    assert (await mew("init")).code == 0
    space = load_space(tmp_path / "space.yaml")
    assert [name for name in space.participants if space.is_person(name)] == [person]
    assert space.space.default_participant == person


async def test_reference_mode_writes_the_layout_of_the_typescript_cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEW_COMPAT", "reference")
    assert (await mew("init")).code == 0
    assert "human" in load_space(tmp_path / ".mew" / "space.yaml").participants
    assert not (tmp_path / "space.yaml").exists()


async def test_without_a_key_a_model_that_needs_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    outcome = await mew("init")
    assert "not set; export OPENAI_API_KEY before `mew up`\n" in outcome.out
    hint = re.search("`mew (init .*--model rehearsal)`", outcome.out)
    assert hint is not None
    again = await mew(*hint.group(1).split())
    assert again.code == 0, "the hint works as printed"
    assert "--model rehearsal" not in again.out
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    assert "--model rehearsal" not in (await mew("init", "--force")).out


async def test_keys_are_not_mentioned_without_need() -> None:
    outcome = await mew("init", "coder-agent", "--model", "rehearsal")
    assert outcome.code == 0
    assert "API_KEY" not in outcome.out
    assert outcome.out.splitlines()[-1].startswith("next: mew up -i")


@pytest.mark.part("templates")
async def test_existing_space_is_overwritten_only_by_force(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("space: {id: old}\n")
    refused = await mew("init", "demo")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == "mew: space.yaml: already exists; --force overwrites it\n"
    assert not (tmp_path / ".mew").exists()
    assert (await mew("init", "demo", "--force")).code == 0
    token = tmp_path / ".mew" / "tokens" / "maria.token"
    token.write_text("kept")
    assert (await mew("init", "coder-agent", "--force")).code == 0
    assert token.read_text() == "kept"


@pytest.mark.part("templates")
async def test_template_list_fits_80_columns() -> None:
    lines = (await mew("init", "--list-templates")).out.splitlines()
    assert len(lines) >= 2
    assert max(map(len, lines)) <= 80


@pytest.mark.part("templates")
async def test_running_space_is_not_overwritten(tmp_path: Path) -> None:
    running_space(tmp_path)
    outcome = await mew("init", "demo", "--force")
    assert "is running in this folder; stop it" in outcome.err
    assert outcome.code == 2


async def test_broken_local_template_leaves_no_files(tmp_path: Path) -> None:
    folder = tmp_path / "templates" / "tiny"
    (folder / "agents").mkdir(parents=True)
    (folder / "agents" / "echo.cjs").write_text("// {{SPACE_NAME}}")
    (folder / "space.yaml").write_text('space: {id: "{{SPACE_NAME}}"}\nparticipants: {ada: {comand: x}}\n')
    broken = await mew("init", "tiny")
    assert "space.yaml:2:22: unknown key 'comand' under participants.ada" in broken.err
    assert broken.code == 2
    assert not (tmp_path / ".mew").exists()
    (folder / "space.yaml").write_text('space: {id: "{{SPACE_NAME}}"}\n')
    assert (await mew("init", "tiny", "--name", "t")).code == 0
    assert (tmp_path / ".mew" / "agents" / "echo.cjs").read_text() == "// {{SPACE_NAME}}"


@pytest.mark.part("templates")
async def test_templates_are_listed_and_described(home: Path) -> None:
    mine = home / ".mew" / "templates" / "mine"
    mine.mkdir(parents=True)
    (mine / "space.yaml").write_text("space: {id: x}\n")
    (mine / "template.json").write_text("{")
    listed = (await mew("init", "--list-templates")).out.splitlines()
    origins = dict(line.split()[:2] for line in listed)
    assert listed[0].startswith("coder-agent")
    assert (origins["coder-agent"], origins["demo"], origins["mine"]) == ("built-in", "built-in", "yours")
    assert ["cannot be used" in line for line in listed] == [name == "mine" for name in origins]
    reported = (await mew("init", "--template-info", "coder-agent")).out
    assert "AGENT_API_KEY: API key of the provider; from OPENAI_API_KEY; never stored" in reported
    assert "# coder-agent" in reported


@pytest.mark.part("templates")
async def test_templates_are_described_as_json() -> None:
    listed = json.loads((await mew("init", "--list-templates", "--json")).out)
    assert {"demo", "coder-agent"} <= {one["name"] for one in listed}
    assert json.loads((await mew("init", "--template-info", "demo", "--json")).out)["name"] == "demo"
    assert (await mew("init", "--json")).code == 2
    assert "(did you mean 'demo'?)" in (await mew("init", "deno")).err


@pytest.mark.part("templates")
@pytest.mark.parametrize("flags", [(), ("--template",)], ids=["argument", "option"])
async def test_unknown_template_lists_the_known_ones(flags: tuple[str, ...]) -> None:
    outcome = await mew("init", *flags, "codr")
    assert outcome.err.startswith("mew: TEMPLATE: no template 'codr' (expected one of coder-agent, ")
    assert outcome.code == 2
    misspelled = await mew("init", *flags, "coder-agnt")
    assert misspelled.err == "mew: TEMPLATE: no template 'coder-agnt' (did you mean 'coder-agent'?)\n"


@pytest.mark.part("templates")
async def test_template_is_also_accepted_as_an_option(tmp_path: Path) -> None:
    assert (await mew("init", "--template", "demo")).code == 0
    assert (tmp_path / "space.yaml").exists()
    both = await mew("init", "demo", "--template", "coder-agent", "--force")
    assert (both.code, both.err) == (2, "mew: --template: cannot be combined with TEMPLATE 'demo'\n")


@pytest.mark.part("templates")
async def test_port_option_is_accepted_with_a_warning() -> None:
    outcome = await mew("init", "demo", "--port", "9000")
    assert outcome.err == "mew: --port has no effect here; give it to `mew up`\n"
    assert outcome.code == 0
