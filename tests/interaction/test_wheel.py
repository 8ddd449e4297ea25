"""The wheel: it takes no import name that another distribution uses, and works without a clone."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import Distribution, distribution, version
from pathlib import Path

import anyio
import pytest
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import serve_gateway
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
TOP_LEVEL = {"mew_agent", "mew_board", "mew_listener", "mew_protocol", "mew_settings", "mew_spaces"}

LIGHT = {
    *("anyio", "httpx2", "openai", "pydantic", "pyyaml", "websockets"),  # what pyproject.toml names
    *("idna", "typing-extensions"),  # needed by anyio
    *("h11", "httpcore2", "truststore"),  # needed by httpx2
    *("jiter", "sniffio"),  # needed by openai
    *("annotated-types", "pydantic-core", "typing-inspection"),  # needed by pydantic
}
if int(version("openai").partition(".")[0]) < 3:
    LIGHT |= {"certifi", "distro", "httpcore", "httpx", "tqdm"}

AGENT_AND_PARTICIPANT = """
import asyncio, sys
from mew_agent import Agent, AgentConfig, ModelIdentity, ModelReply, Participant, Usage

class Parrot:
    identity = ModelIdentity("parrot", "here")

    async def stream(self, request):
        text = request.messages[-1].content
        yield ModelReply(text, tool_calls=(), finish_reason="stop", usage=Usage(10, 2, 12), served_model="parrot")

    async def discover_window(self):
        return None

    async def count_prompt(self, request):
        return None

    async def aclose(self):
        pass

async def main(gateway, ada, coder):
    config = AgentConfig(gateway=gateway, space="s", id="coder", token=coder, model="parrot", context_token_limit=1000)
    agent = Agent(config, Parrot())
    async with agent, Participant(gateway, space="s", id="ada", token=ada) as me:
        running = asyncio.create_task(agent.run())
        answer = await me.ask("chat", {"text": "Hello there."}, to="coder", answer="chat", timeout_seconds=30)
        print(answer.body["text"], me.peers["coder"].context.tokens)
        running.cancel()

asyncio.run(main(*sys.argv[1:]))
"""


def run(*command: str | Path, cwd: Path) -> str:
    environment = {**os.environ, "SSL_CERT_FILE": os.environ["OUTSIDE_SSL_CERT_FILE"]}  # pip may download
    if not environment["SSL_CERT_FILE"]:
        del environment["SSL_CERT_FILE"]
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if built_before := os.environ.get("MEW_WHEEL"):  # by `make dist`
        return ROOT / built_before
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_takes_only_our_own_import_names(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == TOP_LEVEL


def test_the_wheel_holds_every_source_file(wheel: Path) -> None:
    shipped = set(zipfile.ZipFile(wheel).namelist())
    for base, package in (
        ("", "mew_agent"),
        ("protocol", "mew_board"),
        ("protocol", "mew_listener"),
        ("protocol", "mew_protocol"),
        ("protocol", "mew_settings"),
        ("spaces", "mew_spaces"),
    ):
        files = [
            file for file in (ROOT / base / package).rglob("*") if file.is_file() and "__pycache__" not in file.parts
        ]
        assert files
        assert {file.relative_to(ROOT / base).as_posix() for file in files} <= shipped


def test_the_wheel_works_next_to_the_package_called_spaces(wheel: Path, tmp_path: Path) -> None:
    """`spaces` on the package index is Hugging Face's; both distributions must work in one environment."""
    target = tmp_path / "site"
    run(
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-compile",
        "--target",
        target,
        wheel,
        "spaces",
        cwd=tmp_path,
    )
    assert (target / "spaces" / "__init__.py").exists()
    program = (
        "import importlib.util, sys; sys.path.insert(0, sys.argv[1]);"
        "import mew_spaces.gateway.gateway, mew_protocol, mew_agent;"
        "print(importlib.util.find_spec('spaces').origin, mew_spaces.__file__, mew_agent.__file__, sep='\\n')"
    )
    origins = run(sys.executable, "-I", "-c", program, target, cwd=tmp_path).split()
    assert all(Path(origin).is_relative_to(target) for origin in origins)


@pytest.fixture(scope="session")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and nothing that is optional."""
    folder = tmp_path_factory.mktemp("light")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=ROOT)
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python")
    run(*pip, "install", "--quiet", "--no-compile", "--no-deps", wheel, cwd=folder)
    link_requirements(folder)
    return folder


def link_requirements(environment: Path, extra: str = "") -> None:
    """Add links to the packages that the wheel requires, which are compiled here. `make dist` lets pip install them."""
    site = Path(sysconfig.get_path("purelib", vars={"base": str(environment), "platbase": str(environment)}))
    (ours,) = Distribution.discover(name="mew-agent", path=[str(site)])
    waiting, met = [(ours, extra)], set[tuple[str, str]]()
    while waiting:
        owner, extra = waiting.pop()
        for requirement in map(Requirement, owner.requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                found = distribution(requirement.name)
                new = {(requirement.name, one) for one in ("", *requirement.extras)} - met
                waiting += [(found, one) for _, one in new]
                met |= new
                for name in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
                    if not (site / name).exists():
                        (site / name).symlink_to(Path(str(found.locate_file(name))))


def packages_in(environment: Path) -> set[str]:
    program = "import importlib.metadata as m; print(*(one.name for one in m.distributions()))"
    listed = run(environment / "bin" / "python", "-I", "-c", program, cwd=environment)
    return {name.lower().replace("_", "-") for name in listed.split()} - {"mew-agent"}


async def test_the_light_install_runs_an_agent_and_a_participant(environment: Path) -> None:
    assert packages_in(environment) <= LIGHT
    config = parse_space("{space: {id: s}, participants: {ada: {capabilities: [{kind: '*'}]}, coder: {role: agent}}}")
    async with serve_gateway(config) as gateway:
        tokens = gateway.token_of("ada"), gateway.token_of("coder")
        python = str(environment / "bin" / "python")
        done = await anyio.run_process([python, "-I", "-c", AGENT_AND_PARTICIPANT, gateway.ws_url, *tokens])
    assert done.stdout.decode().strip() == "Hello there. 12"


def test_mew_names_the_command_that_adds_the_rest(environment: Path, tmp_path: Path) -> None:
    mew = environment / "bin" / "mew"
    alone = subprocess.run([mew, "status"], cwd=tmp_path, capture_output=True, text=True, check=False)
    python = str(environment / "bin" / "python")
    expected = f"gateway and command line need the extra 'space': {python} -m pip install 'mew-agent[space]'"
    assert (alone.returncode, alone.stderr) == (2, f"mew: {expected}\n")
    program = (
        "from mew_agent import AgentConfig; from mew_agent.agent.sessions import open_resources as o; o(AgentConfig("
    )
    program += "gateway='ws://h', space='s', id='a', token='t', base_url='rehearsal'))"
    model = subprocess.run([python, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"the rehearsal model needs the extra 'space': {python} -m pip install" in model.stderr

    link_requirements(environment, "space")
    run(mew, "init", "--model", "rehearsal", cwd=tmp_path)
    run(mew, "up", "--detach", "--port", "0", cwd=tmp_path)
    try:
        assert "TOKENS" in run(mew, "status", cwd=tmp_path)
    finally:
        run(mew, "down", cwd=tmp_path)
