"""The dialects of training logs: a module each, of the name in `core.dialects`, which says what a log is searched for."""
