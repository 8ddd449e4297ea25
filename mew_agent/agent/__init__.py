"""An agent: a participant that answers chats with a model."""
