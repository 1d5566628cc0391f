"""From a selected configuration to a job that has ended: plan, submit, follow, explain.

What others call stands in the `__init__` of each folder: `build_job` in recipe, `check_launch` in preflight, `Slurm` in
slurm, the launchers in submit, `Engine` in follow, `Journal` in journal.
"""
