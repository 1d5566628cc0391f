"""From a selected configuration to a job that has ended: plan, preflight, jobs.

`plan` makes the job of a configuration, `preflight` says what would go wrong, `jobs`
submits and follows, `schedulers` knows what runs jobs.
"""
