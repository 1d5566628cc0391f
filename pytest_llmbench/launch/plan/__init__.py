"""Plan the jobs of a launch on this cluster, and estimate their GPU-hours."""
