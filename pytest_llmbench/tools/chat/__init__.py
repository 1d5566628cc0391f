"""`llmbench chat`: a session in a few lines, for a chat or a mail."""
