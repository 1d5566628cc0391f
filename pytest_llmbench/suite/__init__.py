"""The built-in tests: short, ordinary pytest functions to read and copy."""
