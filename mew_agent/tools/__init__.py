"""Tools and resources: our own functions, their results, names and size limits, and the offers of peers."""
