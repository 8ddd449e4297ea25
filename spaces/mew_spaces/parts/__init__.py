"""Parts of the gateway that a space may do without. Each is in a folder of its own; the core imports none of them."""
