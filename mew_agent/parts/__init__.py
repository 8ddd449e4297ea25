"""Everything beside the core: each package is one optional part, with its commands and its own dependencies.

`shared` is a library for the parts, not a part itself.
"""
