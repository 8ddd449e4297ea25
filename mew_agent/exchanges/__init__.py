"""Questions to agents and their answers on the way: what of the space belongs to which, piece by piece."""
