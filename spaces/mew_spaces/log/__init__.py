"""The log of a space: its accepted envelopes in one order, and the small state that belongs to them.

`memory` is the log and what a space needs of it, `sqlite` stores it; both pass the same tests. Nothing here knows
what an envelope means.
"""
