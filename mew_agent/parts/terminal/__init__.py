"""Looking at a space: `mew status`, `mew connect`, and the full-screen application that both open at a terminal.

`feed` and `panels` are pure: what the application shows. `joined_space` is its connection. `app` and `widgets` draw it;
they are the only modules that import Textual.
"""
