"""`llmbench probe`: decide if a build is slow, for `git bisect run`."""
