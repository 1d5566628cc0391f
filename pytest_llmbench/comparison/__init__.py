"""Compare two sets of runs: their difference, and the facts that differ."""
