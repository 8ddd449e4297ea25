"""llama.cpp's own server, built once from a pinned source and kept in the user's cache.

    python -m tests.llama.build_server

prints where the program is; the first time it downloads the source distribution of `llama-cpp-python`, which carries
llama.cpp, by pip and checked by its hash, and compiles the server for the CPU alone. Needs cmake and a C++ compiler.
It knows nothing of models or tests.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Final

VERSION: Final = "0.3.36"
SHA256: Final = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
OPTIONS: Final = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_OPENMP=OFF",
    "-DGGML_CCACHE=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_SUBPROCESS=OFF",
)
"""One program without shared libraries, web page, TLS or children of its own; nothing is downloaded while it builds."""


def server_path() -> Path:
    """Where the program is kept, whether it is there yet or not."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "mew-agent" / f"llama-cpp-python-{VERSION}" / "llama-server"


def built_server() -> Path:
    """The program, built if it is not there. Raises `SystemExit` saying what is missing or failed."""
    program = server_path()
    if program.is_file():
        return program
    cmake = shutil.which("cmake")
    if cmake is None:
        raise SystemExit(
            "building llama.cpp's server needs cmake (pip install cmake, or your system's) and a C++ compiler"
        )
    program.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="build-", dir=program.parent) as folder:
        made = _compiled(cmake, _source(Path(folder)), Path(folder) / "build")
        made.replace(program)
    _say(f"built in {time.monotonic() - begun:.0f} s")
    return program


def _source(folder: Path) -> Path:
    """Download and unpack; returns the folder of llama.cpp."""
    _say(f"downloading the source distribution of llama-cpp-python {VERSION} (77 MB)")
    wanted = folder / "requirements.txt"
    wanted.write_text(f"llama-cpp-python=={VERSION} --hash=sha256:{SHA256}\n")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
    _run([*pip, "--no-deps", "--no-binary", "llama-cpp-python", "-r", str(wanted), "-d", str(folder)])
    with tarfile.open(next(folder.glob("llama_cpp_python-*.tar.gz"))) as archive:
        members = [member for member in archive.getmembers() if "/vendor/llama.cpp/" in member.name]
        archive.extractall(folder, members, filter="data")
    return next(folder.glob("llama_cpp_python-*/vendor/llama.cpp"))


def _compiled(cmake: str, source: Path, build: Path) -> Path:
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    _say(f"compiling llama-server with {os.cpu_count()} jobs, which takes some minutes")
    _run([cmake, "-S", str(source), "-B", str(build), *generator, *OPTIONS, "--log-level=WARNING"])
    politely = ["nice"] if shutil.which("nice") else []
    jobs = str(os.cpu_count() or 1)
    _run([*politely, cmake, "--build", str(build), "--target", "llama-server", "--parallel", jobs])
    return build / "bin" / "llama-server"


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, stdout=sys.stderr)
    except subprocess.CalledProcessError as error:
        raise SystemExit(
            f"building llama.cpp's server failed: {' '.join(command[:6])} ... ended with {error.returncode}"
        ) from error


def _say(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    print(built_server())
