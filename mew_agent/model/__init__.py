"""The `Model` interface and its implementation for OpenAI-compatible servers."""
