"""`mew token create`."""

import json
from pathlib import Path

from tests.support.cli import mew

SPACE = "space: {id: review}\nparticipants: {ada: {}, code-reviewer: {command: mew}}\n"


async def test_token_is_created_once_and_printed_in_three_formats(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(SPACE)
    first = await mew("token", "create", "--participant", "code-reviewer")
    token = first.out.strip()
    assert len(token) == 43
    path = tmp_path / ".mew" / "tokens" / "code-reviewer.token"
    assert path.read_text().strip() == token
    assert path.stat().st_mode & 0o077 == 0
    as_json = await mew("token", "create", "-p", "code-reviewer", "--output", "json")
    assert json.loads(as_json.out) == {"participant": "code-reviewer", "space": "review", "token": token}
    as_env = await mew("token", "create", "-p", "code-reviewer", "--output", "env")
    assert as_env.out == f"export MEW_TOKEN_CODE_REVIEWER={token}\n"


async def test_unknown_participant_gets_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(SPACE)
    outcome = await mew("token", "create", "-p", "code-reviewr", "--space-dir", str(tmp_path))
    assert "'code-reviewr' is not in" in outcome.err
    assert "'code-reviewer'?" in outcome.err
    assert outcome.code == 2
    assert not (tmp_path / ".mew").exists()


async def test_token_needs_a_space() -> None:
    outcome = await mew("token", "create", "-p", "ada")
    assert "no space.yaml here" in outcome.err
    assert outcome.code == 2
