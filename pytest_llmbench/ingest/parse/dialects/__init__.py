"""A module for each row of `core.dialects`; `regex` is for those of baseline files."""
