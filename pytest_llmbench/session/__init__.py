"""What every judging session does: settings, runs, judgements, outcomes, checks,
history."""
