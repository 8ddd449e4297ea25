"""The guarded listener of every server: connections, their limits, and what keeps a process running under a flood.

Imports nothing of the other packages, so that all of them can use it.
"""
