"""The log of a space: its accepted envelopes in order, and a small state.

`memory` is the log and its interface, `sqlite` stores it; both pass the same tests. Does not interpret envelopes.
"""
