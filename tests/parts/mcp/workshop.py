"""An MCP server, built with the official package, with every feature that the bridge forwards.

As a program it uses standard input and output.
"""

import os
import sys

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import ToolAnnotations


def make_server() -> "MCPServer[None]":
    """Tools, resources and prompts; a call that waits for another."""
    server: MCPServer[None] = MCPServer("workshop", version="1.2", log_level="ERROR")
    gate = anyio.Event()

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool(annotations=ToolAnnotations(destructive_hint=True))
    def raze() -> str:
        """Tear the workshop down."""
        return "razed"

    @server.tool()
    def fail() -> str:
        """Fail."""
        raise ToolError("the drill is broken")

    @server.tool()
    async def wait_at_gate() -> str:
        """Wait until the gate opens."""
        await gate.wait()
        return "through"

    @server.tool()
    async def open_gate() -> str:
        """Open the gate."""
        gate.set()
        return "open"

    @server.tool()
    async def learn(context: Context[None]) -> str:
        """Add a tool."""
        server.add_tool(lambda: "sawn", name="saw", description="Saw.")
        await context.session.send_tool_list_changed()
        return "learnt to saw"

    @server.tool()
    def environment() -> dict[str, str]:
        """The environment variables of the process."""
        return dict(os.environ)

    @server.tool()
    def big(characters: int) -> str:
        """A long text."""
        return "x" * characters

    @server.resource("notes://today", mime_type="text/markdown")
    def today() -> str:
        """Today's notes."""
        return "# Today"

    @server.resource("notes://{day}")
    def notes(day: str) -> str:
        """A day's notes."""
        return f"nothing on {day}"

    @server.prompt()
    def greet(name: str) -> str:
        """Greet a person."""
        return f"Say hello to {name}."

    add_conversations(server)
    return server


def add_conversations(server: "MCPServer[None]") -> None:
    """Tools that use the session with their client."""

    @server.tool()
    def trace(context: Context[None]) -> str:
        """The trace context of the request."""
        return str((context.request_context.meta or {}).get("traceparent"))

    @server.tool()
    async def work(context: Context[None]) -> str:
        """Work forever; write a line when cancelled."""
        try:
            sys.stderr.write("took the tools out\n")
            sys.stderr.flush()
            await context.report_progress(1, 2, "half done")
            await anyio.sleep_forever()
        finally:
            sys.stderr.write("put the tools away\n")
            sys.stderr.flush()
        return "never"

    @server.tool()
    async def ask_back(method: str, context: Context[None]) -> str:
        """Send a request to the client and return its answer."""
        asking = {
            "sampling": lambda: context.session.create_message([], max_tokens=1),
            "elicitation": lambda: context.session.elicit_form("Your name?", {"type": "object", "properties": {}}),
            "roots": context.session.list_roots,
        }
        try:
            return str(await asking[method]())
        except MCPError as error:
            return f"{error.code}: {error.message}"


if __name__ == "__main__":
    make_server().run("stdio")
