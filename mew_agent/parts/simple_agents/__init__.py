"""Participants without a model: an echo, a calculator, and a fulfiller that decides about proposals."""
