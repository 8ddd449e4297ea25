"""Optional parts: each package is one part, with its commands and its own dependencies.

`shared` is a library for the parts, not a part itself.
"""
