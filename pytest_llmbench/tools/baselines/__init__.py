"""`llmbench baselines`: list, show, compare, check and draft baseline files."""
