"""The history: every verdict of every session, in SQLite or PostgreSQL."""
