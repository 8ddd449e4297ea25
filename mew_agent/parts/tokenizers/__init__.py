"""Exact tokenizers of model families, each with an extra of its own."""
