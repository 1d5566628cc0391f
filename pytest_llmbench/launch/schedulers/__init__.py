"""Schedulers that run jobs, each with its own commands and job states."""
