"""Read the logs of found runs: in several processes, or from a cache."""
