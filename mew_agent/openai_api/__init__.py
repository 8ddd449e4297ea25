"""A door for chat clients: every agent of a space as a model behind OpenAI's chat completions API.

`door.Door` is a person of the space that asks agents; `app.create_app` is the HTTP side of it, `server.serve_app`
the server. `question`, `background` and `shapes` are pure and know neither; how a question goes through the space is
the business of `mew_agent.exchanges`.
"""
