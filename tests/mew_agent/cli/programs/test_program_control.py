"""Logs of programs without secrets. tests/interaction restarts and adds programs."""

from pathlib import Path

from mew_spaces.config.loading import parse_space
from mew_spaces.launch.program_logs import tail

from mew_agent.cli.programs.program_control import hide_secrets, known_secrets

SPACE = """
space: {id: demo}
participants:
  coder: {command: "true", env: {SERVICE_PASSWORD: hunter2hunter2, COLOUR: turquoise}, tokens: [tok-in-space]}
  files: {mcp_server: {url: "https://x.example/mcp", headers: {Authorization: "Bearer ${MCP}", X-Org: acme-org}}}
  git: {mcp_server: {command: "true", env: {GIT_TOKEN: in-git-env}}}
  codex: {acp: {command: "true", env: {CODEX_API_KEY: in-acp-env}}}
  writer: {agent: {api_key_env: WRITER, summariser: {model: s, api_key: of-summariser}}}
"""


def test_secrets_do_not_leave_in_logs(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "coder.token").write_text("tok-of-coder\n")
    environ = {"OPENAI_API_KEY": "abcdef123456", "HOME": "/home/ada", "MCP": "of-mcp-server", "WRITER": "of-writer"}
    secrets = known_secrets(tmp_path, parse_space(SPACE), environ)
    shown = "turquoise /home/ada acme-org"
    hidden = "tok-of-coder tok-in-space abcdef123456 hunter2hunter2 of-mcp-server in-git-env in-acp-env of-writer"
    assert hide_secrets(shown, secrets) == shown
    assert hide_secrets(f"{hidden} of-summariser", secrets) == " ".join(["[hidden]"] * 9)
    for line, hidden in (
        ("Authorization: Bearer xyz123xyz123", "Authorization: Bearer [hidden]"),
        ('{"api_key": "q1w2e3r4"}', '{"api_key": "[hidden]"}'),
        ("GET /v1?token=q1w2e3r4&a=1", "GET /v1?token=[hidden]&a=1"),
        ("key sk-proj-0123456789abcdef failed", "key [hidden] failed"),
        ("get https://ada:s3cret@x.example/a", "get https://ada:[hidden]@x.example/a"),
        ("Authorization: Basic YWRhOnNlY3JldA==", "Authorization: Basic [hidden]"),
        ("jwt eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0", "jwt [hidden]"),
        ("x-eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0.", "x-[hidden]."),
        ("v1.eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0", "v1.[hidden]"),
        ("eyJ-eyJhbGciOiJI is no token", "eyJ-eyJhbGciOiJI is no token"),
        ("used 1,200 tokens of 8,192", "used 1,200 tokens of 8,192"),
    ):
        assert hide_secrets(line, ()) == hidden


def test_the_end_of_a_log_is_read_within_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "coder.log"
    path.write_bytes(b"".join(b"line %d\r\n" % number for number in range(1_000)))
    assert tail(path, 2) == ["line 998", "line 999"]
    assert tail(path, 1_000, max_bytes=25) == ["line 998", "line 999"]
    path.write_bytes(b"no end of line")
    assert tail(path, 5) == ["no end of line"]
