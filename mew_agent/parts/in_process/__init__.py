"""`mew_agent.Space`: a gateway and agents inside a Python program."""
