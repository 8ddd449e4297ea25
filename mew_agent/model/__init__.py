"""The `Model` interface, its implementation for OpenAI-compatible servers, and the usage that servers report."""
