"""Token counts of text: projections, server counts and optional tokenizers."""
