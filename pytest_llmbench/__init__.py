"""Performance tests for LLM training runs: a pytest plugin."""

__version__ = "0.1.0"
