"""`llmbench probe`: the answer to `git bisect run`."""
