"""Window, metrics and model FLOPs of a run."""
