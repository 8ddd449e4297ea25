"""OpenAI's chat completions API over a space: every agent is a model for chat clients.

`ChatParticipant` is the person that sends the requests, `create_app` the HTTP side, `serve_app` the server. `request`
and `format` are pure. `mew_agent.participant.answers` carries chats to agents and back.
"""
