"""Participants without a model: an echo, a calculator, and one that decides about proposals."""
