"""Tools and resources: our own functions, their results, names and bounds, and what peers offer."""
