"""Optional parts of the gateway. Each has its own folder; the core imports none of them."""
