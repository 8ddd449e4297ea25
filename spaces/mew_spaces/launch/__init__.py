"""Starting, supervising and stopping the programs of a space."""
