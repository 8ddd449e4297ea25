"""The `Model` interface, its implementation for OpenAI-compatible servers, and what servers report and write."""
