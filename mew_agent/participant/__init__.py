"""A participant of a space: its connection, and everything it sends, receives, asks and offers."""
