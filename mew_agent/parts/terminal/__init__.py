"""A space in a terminal: `mew connect`, line by line or at full screen, and `mew status --watch`.

`slash` and `terminal_chat` (pure) parse typed lines and format received envelopes. `line_chat` reads and prints lines;
`json_lines` carries envelopes for scripts. `feed` and `panels` (pure) prepare the application's contents.
`joined_space` is its connection. Only `app` and `widgets` import Textual and draw.
"""

from typing import Final

from mew_agent.cli.app.groups import OtherName, Sections, rare_command

COMMANDS: Final[Sections] = {
    "Talk and decide": {
        "connect": rare_command(
            "Join the running space from this terminal.", "mew_agent.parts.terminal.connect:connect"
        )
    },
    "Other names": {
        "space connect": OtherName("connect"),
        "client connect": OtherName("connect --json"),
        "attach": OtherName("connect"),
        "join": OtherName("connect"),
    },
}
