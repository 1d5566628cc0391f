"""`llmbench nodes`: find slow nodes."""
