"""The log of a space: its accepted envelopes in one order, and the small state that belongs to them.

`interface` is the narrow contract; `memory` and `sqlite` implement it and pass the same tests. Nothing here knows
what an envelope means.
"""
