"""`llmbench chat`: summarize a session for a chat message or an email."""
