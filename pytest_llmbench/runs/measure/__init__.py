"""Window, step times, metrics and validity of a run."""
