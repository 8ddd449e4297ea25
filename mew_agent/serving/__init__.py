"""The common room of servers that offer participants of a space to other programs.

`chat_participant` asks for clients and needs no server, `answers` has the bounds and errors, `http` checks keys and
answers failures. Which API a client speaks is left to the parts `openai_api` and `a2a`.
"""
