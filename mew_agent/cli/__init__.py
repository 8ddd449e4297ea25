"""The `mew` command line: the one package that imports both agents and the gateway.

`main` runs a command and turns errors into exit codes; `app.commands` lists all commands. Each command, with its
options and help, is in the module that implements it, and is imported when it is used:

- `app`: what commands share: help pages, options, output, errors, signals, reading and writing lines
- `space`: create, start, stop, clean and extend a space (`init`, `up`, `down`, `token create`, `agent add`)
- `remote`: one-shot commands over HTTP (`chat`, `compact` and the other controls)
- `board`: the board as text
- `chat`: typed lines and slash commands, and raw connections (`client connect`)
- `tui`: board and conversation of a space at a terminal (`status`, `space connect`), line by line or full screen
- `programs`: programs in the foreground (agent, bridge, gateway, model, servers)
- `demo`: the demo
"""
