"""Launching: plan jobs, check them before submission, run and follow them.

`plan` turns configurations into jobs, `preflight` finds problems, `jobs` submits and
follows, `schedulers` talks to Slurm or starts local processes, `policies` decide which
runs follow.
"""
