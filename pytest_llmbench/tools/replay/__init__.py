"""`llmbench replay`: the verdicts under other settings."""
