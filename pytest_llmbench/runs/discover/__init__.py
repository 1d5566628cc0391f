"""Find the runs under the given paths and identify their configurations."""
