"""`mew agent remove`: the file, the membership and the token. tests/interaction runs the programs."""

from pathlib import Path

from mew_spaces.config.loading import load_space
from mew_spaces.gateway.auth import token_path
from mew_spaces.gateway.gateway import serve_gateway

from tests.mew_agent.cli.space import test_add
from tests.mew_agent.cli.space.test_add import as_running
from tests.support.cli import mew
from tests.support.gateway_client import joined

config = test_add.config

SECTION = """  # reads files
  files:
    command: node
    capabilities:
      - chat   # may talk

  # the last one
  eve: {}
"""


async def test_participant_leaves_the_file_with_its_section_only(config: Path) -> None:
    before = config.read_text()
    config.write_text(before + SECTION)
    outcome = await mew("agent", "remove", "files")
    assert (outcome.code, outcome.out) == (0, "files: removed\n")
    assert config.read_text() == before + "  # reads files\n\n  # the last one\n  eve: {}\n"


async def test_removed_member_loses_membership_and_token(config: Path, tmp_path: Path) -> None:
    async with serve_gateway(load_space(config), state=tmp_path / ".mew") as gateway:
        as_running(gateway, tmp_path, config)
        async with joined(gateway, "guest"):
            assert (await mew("agent", "remove", "guest")).code == 0
        assert "guest" not in load_space(config).participants
        assert not token_path(tmp_path / ".mew", "guest").exists()
        assert "guest" not in [one.id for one in gateway.board().participants]


async def test_participant_that_others_name_stays(config: Path) -> None:
    config.write_text(config.read_text().replace("{id: review}", "{id: review, default_participant: guest}"))
    outcome = await mew("agent", "remove", "guest")
    assert outcome.code == 2
    assert "no participant 'guest' under 'participants'" in outcome.err
    assert "guest" in load_space(config).participants


async def test_misspelt_participant_is_suggested(config: Path) -> None:
    assert "did you mean 'guest'?" in (await mew("agent", "remove", "gest")).err
