"""Compaction: plan what leaves the context, have it summarised, and apply the plan."""
