"""Everything beside the core: each package is one optional part, with its commands and its own dependencies."""
