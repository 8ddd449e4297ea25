"""The gateway process: HTTP, WebSocket connections, fan-out, logs and stored state."""
