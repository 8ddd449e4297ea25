"""What an agent still knows after compactions: `python -m benchmarks.compaction_quality`."""
