"""Compactions: plans, summaries of the removed parts, and the changes of the context."""
