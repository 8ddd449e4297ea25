"""Optional parts: each package is one part, with its own commands and dependencies.

`shared` is a library for the parts, not a part itself.
"""
