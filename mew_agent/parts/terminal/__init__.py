"""Being in a space from a terminal: `mew connect`, line by line or at full screen, and `mew status --watch`.

`slash` and `terminal_chat` are pure: what a typed line means, and what a received envelope says. `line_chat` reads and
prints lines, `json_lines` carries envelopes for scripts. `feed` and `panels` are pure: what the application shows.
`joined_space` is its connection. `app` and `widgets` draw it; they are the only modules that import Textual.
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
