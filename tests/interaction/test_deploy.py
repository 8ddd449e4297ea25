"""The files of deploy/, run as far as a machine without a container engine can."""

import os
import re
import shutil
import signal
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.listener import STOP_SECONDS
from mew_spaces.launch.run_file import read_run_file, run_file_path

from mew_agent.cli.main import command_line
from tests.interaction.test_docs import DOCS, ROOT, blocks_of
from tests.support.waiting import PATIENCE_SECONDS, until_in_thread

DEPLOY = ROOT / "deploy"
CONTAINER = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
UNIT = (DEPLOY / "mew-review.service").read_text(encoding="utf-8")
SPACE = "space: {id: review}\nparticipants:\n  ada: {capabilities: [{kind: '*'}]}\n"


def test_the_command_of_container_and_service_starts_and_stops_a_space(tmp_path: Path, unused_port: int) -> None:
    command: list[str] = yaml.safe_load(CONTAINER.rpartition("\nCMD ")[2])
    assert command[0] == "mew"
    # The service differs in the address to listen on only.
    assert f"ExecStart=/srv/mew/venv/bin/{' '.join(command).replace(' --host 0.0.0.0', '')}\n" in UNIT
    (tmp_path / "space.yaml").write_text(SPACE)
    arguments = [str(unused_port) if one == "8080" else one for one in command[1:]]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MEW_", "OPENAI_"))}
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "mew_agent", *arguments], cwd=tmp_path, stdout=out, stderr=out, env=environment
        )

    def is_ready() -> bool:
        run = read_run_file(run_file_path(tmp_path / ".mew"))
        assert process.poll() is None, (tmp_path / "out").read_text()
        return run is not None and run.ready

    try:
        until_in_thread(is_ready)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
        # The journal keeps this output.
        token = (tmp_path / ".mew" / "tokens" / "ada.token").read_text().strip()
        output = (tmp_path / "out").read_text()
        assert "/dashboard" in output
        assert token not in output
    finally:
        process.kill()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "mew-review.service"
    unit.write_text(UNIT.replace("/srv/mew/venv/bin/mew", shutil.which("true") or "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert [line for line in done.stderr.splitlines() if unit.name in line] == []


def test_the_page_shows_the_unit() -> None:
    shown = {block.title: block.code for block in blocks_of(DOCS / "how-to" / "production.md")}
    assert shown["/etc/systemd/system/mew-review.service"] == UNIT


def test_the_container_copies_all_that_its_wheel_needs(tmp_path: Path) -> None:
    for line in re.findall(r"^COPY (.*)$", CONTAINER, re.MULTILINE):
        *sources, target = line.split()
        for source in sources:
            place = tmp_path / target.removeprefix("/")
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, place)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"],
        cwd=tmp_path / "src",
        check=True,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
    )
    assert list((tmp_path / "src" / "dist").glob("*.whl"))


def test_compose_puts_a_trusted_proxy_in_front_of_the_space() -> None:
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    compose = yaml.safe_load(text)
    mew, caddy = compose["services"]["mew"], compose["services"]["caddy"]
    assert "ports" not in mew, "the gateway is reached through the proxy only"
    assert (DEPLOY / mew["build"]["context"] / mew["build"]["dockerfile"]).resolve() == DEPLOY / "Containerfile"
    assert caddy["ports"] == ["80:80", "443:443"]
    advice = re.search(r"^# +(gateway: .*)$", text, re.MULTILINE)
    assert advice is not None
    proxies = parse_space(f"{SPACE}{advice[1]}\n").gateway.trusted_proxies
    assert [one["subnet"] for one in compose["networks"]["front"]["ipam"]["config"]] == list(proxies)


@pytest.mark.skipif(shutil.which("caddy") is None, reason="caddy is not installed; .ci/run installs it")
def test_caddy_accepts_the_file_for_compose() -> None:
    subprocess.run(
        ["caddy", "validate", "--config", str(DEPLOY / "Caddyfile"), "--adapter", "caddyfile"],
        env={**os.environ, "MEW_HOST": "mew.example.org"},
        check=True,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
    )


def test_compose_starts_two_gateways_on_one_nats() -> None:
    compose = yaml.safe_load((DEPLOY / "compose-gateways.yaml").read_text(encoding="utf-8"))["services"]
    ports = [compose[name].pop("ports") for name in ("first", "second")]
    names = [compose[name].pop("hostname") for name in ("first", "second")]
    assert (ports, names) == ([["8080:8080"], ["8081:8080"]], ["first", "second"])
    assert compose["first"] == compose["second"]
    build = compose["first"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Containerfile"
    _assert_is_a_command(compose["first"]["command"])


def test_kubernetes_probes_and_selects_the_pods_of_the_deployment() -> None:
    deployment, service, budget = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8"))
    pods = deployment["spec"]["template"]
    container = pods["spec"]["containers"][0]
    labels = pods["metadata"]["labels"]
    assert service["spec"]["selector"] == labels
    assert budget["spec"]["selector"]["matchLabels"] == deployment["spec"]["selector"]["matchLabels"] == labels
    _assert_is_a_command(container["args"])
    drain_seconds = float(container["args"][-1])
    assert drain_seconds + STOP_SECONDS <= pods["spec"]["terminationGracePeriodSeconds"]
    probes = [container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert [(one["path"], one["port"]) for one in probes] == [
        ("/health", "http"),
        ("/health", "http"),
        ("/ready", "http"),
    ]


@pytest.mark.skipif(
    find_spec("kubernetes_validate") is None, reason="kubernetes-validate is missing; .ci/run installs it"
)
def test_kubernetes_accepts_the_manifests() -> None:
    validate = import_module("kubernetes_validate")
    for manifest in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")):
        validate.validate(manifest, "1.31", strict=True)


def _assert_is_a_command(words: list[str]) -> None:
    """`mew gateway start` would accept these words."""
    assert words[:3] == ["mew", "gateway", "start"]
    command_line().get_command(None, "gateway").get_command(None, "start").make_context("start", words[3:])
