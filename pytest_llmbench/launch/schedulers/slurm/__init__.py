"""Slurm: submission, job states and cluster description."""
