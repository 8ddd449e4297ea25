"""Logs of programs without secrets. tests/interaction restarts and adds programs."""

import os
from pathlib import Path

import pytest
from mew_spaces.config.loading import parse_space
from mew_spaces.launch.processes import started_mark
from mew_spaces.launch.program_logs import log_folder, log_path, prepare_log_folder, tail
from mew_spaces.launch.run_file import Pids, RunFile, run_file_path, write_run_file

from mew_agent.parts.program_control.command_line_programs import (
    CommandLinePrograms,
    SecretsUnknown,
    hide_secrets,
    known_secrets,
)

SPACE = """
space: {id: demo}
participants:
  coder: {command: "true", env: {SERVICE_PASSWORD: hunter2hunter2, COLOUR: turquoise}, tokens: [tok-in-space]}
  files: {mcp_server: {url: "https://x.example/mcp", headers: {Authorization: "Bearer ${MCP}", X-Org: acme-org}}}
  git: {mcp_server: {command: "true", env: {GIT_TOKEN: in-git-env}}}
  codex: {acp: {command: "true", env: {CODEX_API_KEY: in-acp-env}}}
  writer: {agent: {api_key_env: WRITER, summariser: {model: s, api_key: of-summariser}}}
"""


@pytest.mark.part("mcp", "acp")
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


@pytest.mark.part("mcp", "acp")
def test_no_secret_is_known_while_a_token_is_unreadable(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    (tokens / "coder.token").symlink_to(tokens / "coder.token")  # a superuser may read files without permission
    with pytest.raises(SecretsUnknown, match="tokens"):
        known_secrets(tmp_path, parse_space(SPACE), {})


@pytest.mark.part("mcp", "acp")
async def test_a_log_is_withheld_while_tokens_cannot_be_read(tmp_path: Path) -> None:
    config = parse_space(SPACE)
    prepare_log_folder(log_folder(tmp_path), ["coder"])
    log_path(log_folder(tmp_path), "coder").write_text("joined with tok-of-coder\n")
    marks = {str(os.getpid()): started_mark(os.getpid()) or ""}
    pids = Pids(supervisor=os.getpid(), participants={"coder": os.getpid()})
    about = {"gateway": "http://127.0.0.1:1", "ws": "ws://127.0.0.1:1", "started_at": "2026-01-01T00:00:00Z"}
    run = RunFile(space="demo", **about, pids=pids, marks=marks)
    write_run_file(run_file_path(tmp_path), run)
    programs = CommandLinePrograms(tmp_path, config)
    (tmp_path / "tokens").write_text("a file in place of the folder")
    (line,) = await programs.log("coder", 5) or ()
    assert "tok-of-coder" not in line
    assert line.startswith("output withheld, because the tokens to hide cannot be read")
    (tmp_path / "tokens").unlink()
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "coder.token").write_text("tok-of-coder")
    assert await programs.log("coder", 5) == ("joined with [hidden]",)


def test_the_end_of_a_log_is_read_within_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "coder.log"
    path.write_bytes(b"".join(b"line %d\r\n" % number for number in range(1_000)))
    assert tail(path, 2) == ["line 998", "line 999"]
    assert tail(path, 1_000, max_bytes=25) == ["line 998", "line 999"]
    path.write_bytes(b"no end of line")
    assert tail(path, 5) == ["no end of line"]
