"""A member of a space: connection, messages, peers, requests and answers."""
