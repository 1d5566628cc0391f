"""`llmbench nodes`: the nodes that make jobs slow."""
