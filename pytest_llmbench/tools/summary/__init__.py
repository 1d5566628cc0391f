"""`llmbench summary`: tabulate runs with step time and TFLOP/s."""
