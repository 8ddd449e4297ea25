"""Exact tokenizers of model families, each with its own extra."""
