"""A judging session: settings, runs, judgements, outcomes, checks and history."""
