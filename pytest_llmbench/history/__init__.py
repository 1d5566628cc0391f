"""Store the verdicts of all sessions in SQLite or PostgreSQL."""
