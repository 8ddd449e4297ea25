"""Stores entries in the log of a space without a gateway."""

from mew_spaces.log.memory import SpaceLog


def commit(log: SpaceLog) -> None:
    """Store and publish everything staged. Raises `NotStored`."""
    batch = log.seal()
    log.write(batch)
    log.publish(batch)
