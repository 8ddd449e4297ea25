"""The `mew` command line: the one package that imports both agents and the gateway.

`main` runs a command and turns errors into exit codes; `app.commands` lists all commands. Each module below implements
its commands with their options and help, and is imported when used:

- `app`: help pages, options, output, errors, signals, reading and writing lines
- `space`: create, start, stop, clean and extend a space (`init`, `up`, `down`, `token`, `agent add`)
- `remote`: one-shot commands over HTTP (`status`, `chat`, `compact` and the other controls)
- `board`: the view of the board, and the board as text
- `programs`: programs in the foreground (agent, bridge, gateway, model, servers)
"""
