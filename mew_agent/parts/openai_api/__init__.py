"""OpenAI's chat completions API over a space: every agent is a model for chat clients.

`ChatParticipant` is the person of the space who sends the requests, `create_app` the HTTP side, `serve_app` the server.
`request` and `format` are pure. How a chat reaches an agent and returns is in `mew_agent.participant.answers`.
"""
