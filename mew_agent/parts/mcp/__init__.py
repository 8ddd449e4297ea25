"""An MCP server as a participant: its tools, resources and prompts are available to everyone in a space.

`bridge.run_bridge` starts or reaches the server, joins the space, and restarts the server if it fails. Only
`mcp_session` needs the extra `mcp`.
"""
