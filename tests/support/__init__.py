"""Runs, logs, documents and servers that the tests build."""
