"""`mew token`: print, create, replace, revoke and list."""

import json
from pathlib import Path

from tests.support.cli import mew

SPACE = "space: {id: review}\nparticipants: {ada: {}, code-reviewer: {command: mew}}\n"


async def test_token_is_created_once_and_printed_in_three_formats(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(SPACE)
    first = await mew("token", "code-reviewer")
    token = first.out.strip()
    assert len(token) == 43
    path = tmp_path / ".mew" / "tokens" / "code-reviewer.token"
    assert path.read_text().strip() == token
    assert path.stat().st_mode & 0o077 == 0
    as_json = await mew("token", "code-reviewer", "--json")
    assert json.loads(as_json.out) == {"participant": "code-reviewer", "space": "review", "token": token}
    as_env = await mew("token", "code-reviewer", "--format", "env")
    assert as_env.out == f"export MEW_TOKEN_CODE_REVIEWER={token}\n"


async def test_unknown_participant_gets_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(SPACE)
    outcome = await mew("token", "code-reviewr", "--space-dir", str(tmp_path))
    assert "'code-reviewr' is not in" in outcome.err
    assert "'code-reviewer'?" in outcome.err
    assert outcome.code == 2
    assert not (tmp_path / ".mew").exists()


async def test_token_needs_a_space() -> None:
    outcome = await mew("token", "ada")
    assert "no space.yaml here" in outcome.err
    assert outcome.code == 2


async def test_rotated_token_is_new_and_revoked_token_is_gone(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(SPACE)
    path = tmp_path / ".mew" / "tokens" / "ada.token"
    first = (await mew("token", "ada")).out
    second = (await mew("token", "ada", "--replace")).out
    assert first != second
    assert path.read_text() == second
    assert (await mew("token", "ada", "--revoke")).out == "ada: token revoked\n"
    assert not path.exists()
    for change in ("--replace", "--revoke"):
        outcome = await mew("token", "ada", change)
        assert outcome.code == 2
        assert "no such token" in outcome.err


async def test_expiry_is_stored_and_listed(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(SPACE)
    await mew("token", "code-reviewer")
    token = (await mew("token", "ada", "--expires", "8h")).out.strip()
    await mew("token", "--observer", "screen")
    listed = json.loads((await mew("token", "--output", "json")).out)
    assert [(row["id"], row["role"], row["expires_at"] is not None, row["expired"]) for row in listed] == [
        ("ada", "participant", True, False),
        ("code-reviewer", "participant", False, False),
        ("screen", "observer", False, False),
    ]
    shown = (await mew("token")).out
    assert "ada  participant  expires " in shown
    assert token not in shown
    assert (await mew("token", "ada")).out.strip() == token
    assert (tmp_path / ".mew/tokens/ada.token").read_text() == token + "\n"
    await mew("token", "ada", "--revoke")
    assert not list((tmp_path / ".mew/tokens").glob("ada.*"))
    wrong = await mew("token", "ada", "--expires", "soon")
    assert wrong.code == 2
    assert "such as 8h" in wrong.err


async def test_token_command_needs_one_holder_with_a_safe_name(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(SPACE)
    for arguments in ("--replace", "ada --observer screen", "--observer ../up", "ada --replace --revoke"):
        assert (await mew("token", *arguments.split())).code == 2


async def test_token_create_of_the_typescript_cli_works_and_names_the_command(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(SPACE)
    first = await mew("token", "create", "--participant-id=ada")
    assert first.err == "mew: `mew token create` is `mew token` here\n"
    assert (await mew("token", "ada")).out == first.out
