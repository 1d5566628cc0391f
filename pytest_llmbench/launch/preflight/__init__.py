"""Checks before submission, and the plan of a launch as text."""
