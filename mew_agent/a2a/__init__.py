"""The agents of a space for clients of the A2A protocol (Agent2Agent): a card and an endpoint for each.

`server` serves them over HTTP, `tasks` turns an answer into a task. Both need the extra `a2a`.
"""
