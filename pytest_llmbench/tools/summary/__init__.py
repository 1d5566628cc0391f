"""`llmbench summary`: a table of runs."""
