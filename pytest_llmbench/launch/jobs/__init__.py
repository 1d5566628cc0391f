"""Submit jobs through any scheduler, follow them, and record them in the journal."""
