"""Every command of `mew`: its name, its one-line summary, and the function that implements it.

Nothing here imports a command, so `mew --help` answers at once. A summary is also the first line of the command's own
help; a test compares the two.
"""

from typing import Final

from mew_agent.cli.app.groups import CommandEntry, GroupEntry, Sections

_UP: Final = CommandEntry("Start a space: its gateway and its participants.", "mew_agent.cli.space.commands:up")
_DOWN: Final = CommandEntry("Stop the running space of this folder.", "mew_agent.cli.space.commands:down")
_STATUS: Final = CommandEntry(
    "Show how full each agent's context window is.", "mew_agent.cli.remote.status:show_status"
)

COMMANDS: Final[Sections] = {
    "Start and stop": {
        "init": CommandEntry("Create a space in this folder from a template.", "mew_agent.cli.space.init:init"),
        "up": _UP,
        "down": _DOWN,
        "demo": CommandEntry("Watch two agents fill up and compact; needs no key.", "mew_agent.cli.demo.demo:demo"),
    },
    "Watch": {"status": _STATUS},
    "Act on a participant": {
        "chat": CommandEntry("Send a message and print the answer.", "mew_agent.cli.remote.control:chat"),
        "compact": CommandEntry(
            "Compact a participant's context and report the tokens freed.", "mew_agent.cli.remote.control:compact"
        ),
        "forget": CommandEntry(
            "Drop messages from one end of a participant's history.", "mew_agent.cli.remote.control:forget"
        ),
        "clear": CommandEntry("Clear a participant's history.", "mew_agent.cli.remote.control:clear"),
        "pause": CommandEntry("Pause a participant.", "mew_agent.cli.remote.control:pause"),
        "resume": CommandEntry("Resume a paused participant.", "mew_agent.cli.remote.control:resume"),
    },
    "Join a space, or add to it": {
        "space": GroupEntry(
            "Join a space from the terminal; start, stop or clean one.",
            {
                "connect": CommandEntry(
                    "Join the running space from this terminal.", "mew_agent.cli.chat.connect:connect"
                ),
                "up": _UP,
                "down": _DOWN,
                "status": _STATUS,
                "clean": CommandEntry("Remove the logs and FIFOs of past runs.", "mew_agent.cli.space.clean:clean"),
            },
        ),
        "agent": GroupEntry(
            "Run an agent, or add a participant.",
            {
                "run": CommandEntry("Run an agent until it is shut down.", "mew_agent.cli.programs.agent:run"),
                "add": CommandEntry("Add a participant, even while the space runs.", "mew_agent.cli.space.add:add"),
                "start": CommandEntry(
                    "Run a participant that needs no model.", "mew_agent.cli.programs.simple_agent:start"
                ),
            },
        ),
        "run": CommandEntry(
            "Run your own program as a participant.", "mew_agent.cli.programs.run:run_program", passes_options=True
        ),
        "token": GroupEntry(
            "Create and print tokens.",
            {
                "create": CommandEntry(
                    "Print a participant's token; create it if needed.", "mew_agent.cli.space.tokens:create"
                )
            },
        ),
        "bridge": GroupEntry(
            "Connect an MCP server to a space.",
            {"start": CommandEntry("Offer an MCP server's tools in a space.", "mew_agent.cli.programs.bridge:start")},
        ),
        "mcp": GroupEntry(
            "Offer a space to MCP clients.",
            {
                "serve": CommandEntry(
                    "Run an MCP server that acts in a space.", "mew_agent.cli.programs.mcp_server:serve"
                )
            },
        ),
        "serve": CommandEntry("Offer the agents as models to OpenAI clients.", "mew_agent.cli.programs.serve:serve"),
    },
    "Run one component": {
        "gateway": GroupEntry(
            "Run a gateway.",
            {"start": CommandEntry("Run the gateway of one or more spaces.", "mew_agent.cli.programs.gateway:start")},
        ),
        "model": GroupEntry(
            "Run the rehearsal model.",
            {
                "serve": CommandEntry(
                    "Run the rehearsal model: canned replies, no real model.", "mew_agent.cli.programs.model:serve"
                )
            },
        ),
        "client": GroupEntry(
            "Connect by hand or from a script.",
            {"connect": CommandEntry("Join a space and exchange lines of JSON.", "mew_agent.cli.chat.client:connect")},
        ),
        "context": GroupEntry(
            "Try out context policies.",
            {
                "simulate": CommandEntry(
                    "Replay a log of context sizes through a policy.", "mew_agent.cli.programs.context:simulate"
                )
            },
        ),
    },
}
