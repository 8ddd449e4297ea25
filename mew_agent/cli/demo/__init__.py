"""`mew demo`: a complete space whose agents fill up and compact."""
