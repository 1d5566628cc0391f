"""`llmbench compare`: compare the step times of two sets of runs."""
