"""The journal in .llmbench/launch.db: what was submitted, written down before it is submitted."""
