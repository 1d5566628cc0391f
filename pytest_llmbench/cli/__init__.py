"""The command line program `llmbench`."""
