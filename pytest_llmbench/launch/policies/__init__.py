"""The runs that follow from those of a configuration, as pure functions.

Each policy is a module with frozen settings and `next_runs(history, policy)`: repeats,
an A/B, a search over builds, runs on suspect nodes. `run_history` has the history and
the answers; `RunEngine` of `launch/run_engine.py` calls them.
"""
