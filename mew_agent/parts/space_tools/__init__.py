"""Tools with which a model reads the board of contexts and the resources of peers."""
