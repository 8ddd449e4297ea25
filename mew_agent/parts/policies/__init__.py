"""The policies of other systems by name, and `mew context simulate`, which replays a log through any policy."""
