"""`llmbench setup` and `llmbench cluster`: prepare a cluster for the first launch."""
