"""An MCP server as a participant: its tools, resources and prompts are available to everyone in a space.

`supervisor.run_bridge` starts or reaches the server, joins the space, and restarts the server if it fails. Only
`session` needs the extra `mcp`.
"""
