"""Bytes to parsed logs: sources, dialects, recognisers, endings and the cache."""
