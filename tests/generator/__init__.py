"""Writes training logs whose lines match those of the recipe documents to the letter:
examples and test data."""

from generator.plan import Plan
from generator.runs import write_run

__all__ = ["Plan", "write_run"]
