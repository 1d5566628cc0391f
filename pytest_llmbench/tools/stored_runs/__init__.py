"""`llmbench history`: list, show, export, prune and add stored sessions."""
