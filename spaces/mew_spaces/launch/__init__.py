"""Starts, supervises and stops the programs of a space."""
