"""Jobs whatever runs them: submitted, followed to their end, kept in the journal."""
