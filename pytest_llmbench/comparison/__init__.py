"""Two sets of runs next to each other: how far they differ, and in what else."""
