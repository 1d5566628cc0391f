"""Read the logs of found runs, each once: in several processes, unchanged logs from a
cache."""
