"""What `make check` says of known vulnerabilities in dependencies."""

import json

from tests.audit import report

FINE = {"name": "anyio", "version": "4.12.0", "vulns": []}
BAD = {"name": "h11", "version": "0.1", "vulns": [{"id": "CVE-2026-1", "fix_versions": ["0.2"]}]}
UNKNOWN = {"name": "mew-agent", "skip_reason": "not found"}


def said(*found: object) -> tuple[int, list[str]]:
    return report(json.dumps({"dependencies": found, "fixes": []}), "")


def test_a_vulnerable_dependency_fails_the_audit() -> None:
    code, lines = said(FINE, BAD)
    assert code == 1
    assert lines == ["h11 0.1: CVE-2026-1, fixed in 0.2", "2 dependencies audited, 1 known vulnerabilities"]


def test_packages_not_audited_are_listed_without_failing() -> None:
    assert said(FINE, UNKNOWN)[0] == 0
    assert said(FINE, UNKNOWN)[1][-1] == "1 dependencies NOT audited: mew-agent"
    assert said(UNKNOWN)[1][0].startswith("dependencies NOT audited: ")
    assert report("", "...\nConnectionError: no route") == (0, ["dependencies NOT audited: ConnectionError: no route"])
