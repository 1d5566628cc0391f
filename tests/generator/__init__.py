"""Writer of synthetic training logs for examples and tests.

Its lines match those in the documents of the recipes exactly.
"""

from generator.plan import Plan
from generator.runs import write_run

__all__ = ["Plan", "write_run"]
