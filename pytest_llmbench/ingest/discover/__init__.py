"""Which runs are under the given paths, and which configuration each one is."""
