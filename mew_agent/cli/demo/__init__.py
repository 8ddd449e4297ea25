"""`mew demo`: a complete space that fills up and is compacted."""
