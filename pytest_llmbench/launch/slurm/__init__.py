"""Slurm's own commands: asked with a time-out, their output read into records."""
