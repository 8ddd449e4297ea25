"""`mew connect`: joins a space from a terminal, at full screen or line by line.

Chooses between the two. `TERMINAL` is the entry of the table `mew_agent.terminals`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Literal

from mew_protocol.kinds import CHAT
from mew_spaces.config.loading import SpaceConfig

from mew_agent.cli.app import terminal
from mew_agent.cli.app.locate import space_config_path, space_folder
from mew_agent.cli.app.options import OUTPUT, ConnectionOptions, PlainOption, ProgramConnection, option
from mew_agent.cli.remote.identity import Identity, configuration_at, find_identity
from mew_agent.errors import ConfigError
from mew_agent.parts.shared.line_io import lines_of_stdin, read_lines
from mew_agent.parts.terminal.json_lines import LineFiles
from mew_agent.parts.terminal.line_chat import chat_by_lines
from mew_agent.program import run_until_signal


def connect(
    connection: ProgramConnection,
    *,
    config: Annotated[
        Path | None, option("--config, -c FILE", "Path of the space's space.yaml (default: found in the folder).")
    ] = None,
    plain: PlainOption = False,
    files: LineFiles,
) -> None:
    """Join the running space from this terminal.

    At a terminal it opens the full-screen application, where F1 shows the keys. Type /help for the commands.

    With --json, each line read is an envelope to send, each line written is an envelope received. The gateway fills in
    missing headers (id, ts, from). Data frames are written as `{"type": "frame", "stream_id": ..., "data": ...}`, and
    `{"type": "stream_gap", "stream_id": ..., "missed": ...}` where frames are missing. The line `quit` ends the
    connection; the end of the input does not.
    """
    if config is not None and connection.folder is None:
        connection = replace(connection, folder=space_folder(space_config_path(config, None)))
    if OUTPUT.is_json:
        files.exchange(find_identity(connection, token=""))
    elif files != LineFiles():
        raise ConfigError("--fifo-in, --fifo-out, --output-file", "require --json")
    else:
        TERMINAL.join(connection, plain=plain)


class TerminalPart:
    """A space at a terminal: at full screen if the terminal can show it, else line by line."""

    def join(self, connection: ConnectionOptions, config: SpaceConfig | None = None, *, plain: bool = False) -> None:
        """Chat until `/exit` or the end of the input, line by line if `plain`.

        `config` is the space.yaml, if already read.
        """
        who = find_identity(connection)
        targets = default_targets(config or configuration_at(who.run_path), who.participant)
        if not plain and (client := terminal.full_screen()) is not None:
            client.open_space(who, targets)
        else:
            run_until_signal(lambda: chat_by_lines(who, targets, read_lines(lines_of_stdin())))

    def open_space(
        self,
        who: Identity,
        targets: tuple[str, ...] = (),
        *,
        start_on: Literal["conversation", "board"] = "conversation",
        bell: bool = False,
    ) -> None:
        """Run the full-screen application; see `app.open_space`."""
        from mew_agent.parts.terminal.app import open_space  # Textual takes long to import

        open_space(who, targets, start_on=start_on, bell=bell)


TERMINAL: Final = TerminalPart()


def default_targets(config: SpaceConfig | None, participant: str) -> tuple[str, ...]:
    """Return the default recipients of this participant's plain text, from space.yaml."""
    if config is None:
        return ()
    own = config.participants.get(participant)
    return (own.default_to.get(CHAT) if own else None) or config.defaults.routing.default_to.get(CHAT, ())
