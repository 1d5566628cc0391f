"""The dialects of training logs: a module each. `dialect_table` says what a log is searched for."""
