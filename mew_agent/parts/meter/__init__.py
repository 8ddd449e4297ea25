"""A relay between an agent and its model server that reports how full the agent's context is.

`request_facts` reads requests and `replies` reads responses, both [pure]. `main_line` [pure] decides which calls belong
to the agent's own conversation. `relay` passes the bytes on, and `meter` reports to a space.
"""
