"""A model's tools for reading the board of contexts and the resources of peers."""
