"""Which files under the given paths are runs, and of which configuration."""
