"""Runs an ACP agent and writes both directions of its standard streams to a file: `tee.py FILE COMMAND ...`."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

write_lock = threading.Lock()


def copy(source: IO[bytes], target: IO[bytes], file: IO[str], sender: str) -> None:
    for line in source:
        with write_lock:
            try:
                file.write(json.dumps({"from": sender, "message": json.loads(line)}) + "\n")
            except ValueError:
                file.write(json.dumps({"from": sender, "line": line.decode(errors="replace")}) + "\n")
            file.flush()
        try:
            target.write(line)
            target.flush()
        except OSError:
            return
    target.close()


def main() -> None:
    program = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert program.stdin is not None
    assert program.stdout is not None
    with Path(sys.argv[1]).open("a", encoding="utf-8") as file:
        arguments = (sys.stdin.buffer, program.stdin, file, "client")
        threading.Thread(target=copy, args=arguments, daemon=True).start()
        copy(program.stdout, sys.stdout.buffer, file, "agent")
        sys.exit(program.wait())


if __name__ == "__main__":
    main()
