"""Commands that run one program in the foreground: agent, bridge, gateway, model, servers."""
