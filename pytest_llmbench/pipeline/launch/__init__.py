"""From selected configurations to the verdicts of launched runs: plan, submit, follow, judge, run again."""
