"""`llmbench site`: static pages of a history."""
