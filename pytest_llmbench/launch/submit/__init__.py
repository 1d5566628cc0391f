"""Giving a job to whoever runs it: sbatch, a launcher of the recipes, or this machine."""
