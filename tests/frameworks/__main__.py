"""Install each library into an environment of its own, print the versions, and run the tests that need them.

    make test-frameworks
    make test-frameworks ONLY=crewai

Takes the folder of the environments, and names of environments (default: all). They take 2 GB together.
"""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

from tests.frameworks import ENVIRONMENTS, FOLDER_VARIABLE

ROOT = Path(__file__).parents[2]
TESTS = ("tests/interaction/test_own_engines.py", "tests/frameworks/check_usages.py")


def install(folder: Path, packages: tuple[str, ...]) -> None:
    """Install the newest versions, then this package as a user does, and print which versions those are."""
    if not (folder / "bin" / "python").exists():
        venv.create(folder, with_pip=True)
    pip = (str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check")
    subprocess.run([*pip, "install", "--quiet", "--upgrade", *packages], check=True)
    subprocess.run([*pip, "install", "--quiet", "-e", str(ROOT)], check=True)  # without the extra `mcp`
    subprocess.run([*pip, "check"], check=True)
    names = {re.split(r"[\[<>=]", one)[0] for one in packages} | {"openai", "mcp", "pydantic"}
    listed = subprocess.run([*pip, "list", "--format", "freeze"], check=True, capture_output=True, text=True).stdout
    versions = [line for line in listed.splitlines() if line.partition("==")[0].lower() in names]
    print(f"{folder.name}: {', '.join(versions)}", flush=True)


def main(folder: Path, names: list[str]) -> int:
    """Return pytest's exit code."""
    for name in names or ENVIRONMENTS:
        install(folder / name, ENVIRONMENTS[name])
    environment = {**os.environ, FOLDER_VARIABLE: str(folder)}
    return subprocess.run([sys.executable, "-m", "pytest", "-v", *TESTS], cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
