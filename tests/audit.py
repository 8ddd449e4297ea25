"""Checks the installed dependencies for known vulnerabilities, as `make check` does: `python -m tests.audit`.

Ends with 1 if there are any. What could not be checked is printed and does not fail: without a network nothing is
known, which must look different from knowing that nothing is wrong.
"""

import json
import subprocess
import sys

SECONDS = 300


def main() -> int:
    """Run pip-audit on this environment, print what it found, and return the exit code."""
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--local",
        "--skip-editable",
        "--progress-spinner",
        "off",
        "-f",
        "json",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        code, lines = report(done.stdout, done.stderr)
    except subprocess.TimeoutExpired:
        code, lines = 0, [f"dependencies NOT audited: pip-audit did not end within {SECONDS} seconds"]
    print("\n".join(lines))
    return code


def report(output: str, errors: str) -> tuple[int, list[str]]:
    """Return the exit code and the lines that say what the output of pip-audit means."""
    try:
        found = json.loads(output)["dependencies"]
    except (ValueError, LookupError):
        last = errors.strip().splitlines()[-1:] or ["pip-audit printed nothing"]
        return 0, [f"dependencies NOT audited: {last[0]}"]
    audited = [one for one in found if "vulns" in one]
    vulnerable = [
        f"{one['name']} {one['version']}: {vulnerability['id']}, "
        f"fixed in {', '.join(vulnerability['fix_versions']) or 'no release'}"
        for one in audited
        for vulnerability in one["vulns"]
    ]
    skipped = [one["name"] for one in found if "vulns" not in one and "skip_reason" in one]
    summary = [f"{len(audited)} dependencies audited, {len(vulnerable)} known vulnerabilities"]
    if not audited:
        summary = ["dependencies NOT audited: the vulnerability service knows none of them; is it reachable from here?"]
    elif skipped:
        summary.append(f"{len(skipped)} dependencies NOT audited: {', '.join(sorted(skipped))}")
    return int(bool(vulnerable)), [*vulnerable, *summary]


if __name__ == "__main__":
    sys.exit(main())
