"""Slurm: how jobs are submitted to it, what became of them, what its cluster has."""
