"""Read, validate, lint and write the baseline files."""
