"""From a selected configuration to a job that has ended: plan, submit, follow, explain."""
