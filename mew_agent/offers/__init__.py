"""What a participant offers its peers over MCP: tools, resources, and the answers to their requests."""
