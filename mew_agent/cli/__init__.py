"""The command line: the one place that knows both sides, agents and gateway.

`main` has the commands and makes a line and an exit code of whatever goes wrong; help reads as in `help_pages`, shared
options are in `options`. Each command's own module imports what it needs when it runs. A map:

- a space from start to end: `init` and `templates`; `space` (its commands), `locate`, `plan` with `agent_sections` and
  `ports` (everything that is settled first), `up`; `running` (who asks, and where), `clean`
- one question to one participant, over HTTP: `http_api`, `question`; so ask `chat`, `control` and `desk`, which
  `mcp_tools` offers to MCP clients
- the board: `live_board` follows it, `board_words` and `board_table` say it, `status` shows it
- a seat in the space: `connect` for people (`talk`, `slash`), `client` for lines of JSON, `line_io` under both
- programs: `agent` with `fulfilling`, `bridge`, `gateway`, `model`, `serve`, `mcp_command`, `run_as`; `add` and
  `tokens` let them in
- `demo`: its story, its texts and its views
- the edges: `terminal` (printing), `failure` (errors in words), `signals` (ending when asked to)
"""
