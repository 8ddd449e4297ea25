"""Commands that run one program in the foreground: an agent, a bridge, a gateway, a model, a server."""
