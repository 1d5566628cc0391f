"""Window, step times and metrics of a run, and whether it is valid."""
