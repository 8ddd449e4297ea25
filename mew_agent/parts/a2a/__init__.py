"""The participants of a space for clients of the A2A protocol (Agent2Agent): a card and an endpoint for each.

`a2a_server` serves them over HTTP, `tasks` turns an answer into a task, `tool_calls` reads calls. All need the extra
`a2a`.
"""
