"""Commands at gateways of other implementations, such as the TypeScript one, which serve no board over HTTP."""
