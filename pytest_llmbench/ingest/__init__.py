"""From paths to parsed runs: open files, find runs, say which configuration each one is, read their logs."""
