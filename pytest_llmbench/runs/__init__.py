"""Folders to runs, and runs to measurements."""
