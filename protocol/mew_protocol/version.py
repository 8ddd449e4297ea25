"""[pure] Which versions of the MEW protocol we speak."""

PROTOCOL = "mew/v0.4"
"""What every envelope we write carries."""

ACCEPTED_PROTOCOLS = frozenset({"mew/v0.4", "mew/v0.3"})
"""What we read. An envelope is relayed with the version its sender wrote."""
