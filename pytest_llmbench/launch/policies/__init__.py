"""Policies that choose the next runs of a configuration, as pure functions.

Each policy is a module with frozen settings and `next_runs(history, policy)`: repeats,
an A/B, a search over builds, runs on suspect nodes. `run_history` defines the history
and the possible answers. `RunEngine` in `launch/run_engine.py` calls the policies.
"""
