"""Plan the jobs of a launch: what each recipe runs on this cluster, and what it costs."""
