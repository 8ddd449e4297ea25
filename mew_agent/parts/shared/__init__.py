"""Code that several parts share and the core does not need. Parts may import it; it imports no part.

`chat_participant` asks agents for clients and needs no server, `api_limits` has the bounds and errors, `http_servers`
checks keys and answers failures, `relay` passes calls to a model server, `responses_format` writes the Responses API,
`child_program` runs programs, `line_io` reads lines, `serving` has the common steps of commands that serve,
`serve_model` serves the models of the table,
`composition_lines` writes the parts of a context as lines, `text_answer` builds an answer as text alone,
`reported_usage` writes its usage and context, `embedded_model` runs a model in the process of its agent.
"""
