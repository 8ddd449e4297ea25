"""`mew demo`: a complete space with agents that fill up and compact."""
