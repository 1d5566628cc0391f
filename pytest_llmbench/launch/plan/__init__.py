"""From a recipe and a cluster to the job of a configuration, what it costs and what it
is for."""
