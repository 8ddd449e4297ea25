"""Compaction: plan what leaves the context, and replace it with a summary."""
