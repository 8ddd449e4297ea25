"""The interface to language models, and the OpenAI-compatible client behind it."""
