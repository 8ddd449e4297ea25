"""[pure] The view model of the board: each participant in words and figures, computed once for every surface."""
