"""The guarded listener of every server: connections, limits that senders share, and survival of floods.

Imports nothing of the other packages, so that all of them can use it.
"""
