"""Compaction: plan it, have the removed part summarised, and apply the plan."""
