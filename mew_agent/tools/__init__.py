"""Tools and resources: our own functions, their results, names and size limits, and what peers offer."""
