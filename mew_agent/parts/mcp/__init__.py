"""An MCP server as a participant: its tools, resources and prompts are available to everyone in a space.

`bridge.run_bridge` starts or connects to the server, joins the space, and restarts a failed server. Only `mcp_session`
needs the extra `mcp`.
"""
