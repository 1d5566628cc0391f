"""`llmbench replay`: judge the same runs under other settings."""
