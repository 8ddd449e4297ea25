"""`/openapi.json`: the description of the gateway's HTTP API for client generators."""
